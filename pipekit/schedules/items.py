"""What lies on a worker when: which task gives what another one needs, in the order of its list."""

from collections.abc import Sequence
from typing import NamedTuple

from pipekit.schedules.ops import SUMS, WEIGHTS, Item
from pipekit.schedules.task import Task

_Key = tuple[Item, int, int | None, int | None]
"""An item, its stage, its microbatch if each has one, and the worker where it lies if away."""


class Missing(NamedTuple):
    """An item that is not there when a task needs it."""

    number: int  # of the task
    item: Item  # that it needs
    # the task that has taken it, or given an older version; None: none ever gave it
    before: int | None


class Items:
    """Who gives what the tasks of a table need, beside what goes from stage to stage.

    Attributes:
        own: of tasks that need something of their microbatch, the one that gave it.
        others: likewise, the other tasks behind which they have to come.
        missing: what is not there when it is needed.
    """

    def __init__(self, workers: Sequence[Sequence[Task]]) -> None:
        self.own: dict[int, int] = {}
        self.others: dict[int, list[int]] = {}
        self.missing: list[Missing] = []
        first = 0
        for tasks in workers:
            self._follow(tasks, first)
            first += len(tasks)

    def _follow(self, tasks: Sequence[Task], first: int) -> None:
        """Go through a worker's list; its first task has the number ``first``."""
        # An item of a stage is there from the start, unless tasks give it, or take it away.
        moved = {
            (item, stage)
            for op, stage, *_ in tasks
            for item in (*op.gives, *(op.takes if op.is_pass else ()))
            if item.each == "stage"
        }
        given: dict[_Key, int] = {}
        gone: dict[_Key, int] = {}
        readers: dict[_Key, list[int]] = {}
        for number, task in enumerate(tasks, first):
            op, stage, _, version = task
            for item in (*op.takes, *op.needs):
                if item.each == "stage" and (item, stage) not in moved:
                    continue
                key = _key(item, task)
                giver = given.get(key)
                is_old = giver is not None and item is WEIGHTS and op.is_pass
                if giver is None or (is_old and tasks[giver - first].version != version):
                    self.missing.append(Missing(number, item, gone.get(key, giver)))
                    continue
                if item.each == "microbatch":
                    self.own.setdefault(number, giver)
                behind = [giver, *(readers.pop(key, ()) if item in op.takes else ())]
                self.others.setdefault(number, []).extend(behind)
                readers.setdefault(key, []).append(number)
                if item in op.takes:
                    del given[key]
                    gone[key] = number
            for item in op.gives:
                given[_key(item, task)] = number
            if op.adds_gradient and given.pop((SUMS, stage, None, None), None) is not None:
                gone[SUMS, stage, None, None] = number  # they lack the new one


def _key(item: Item, task: Task) -> _Key:
    microbatch = task.microbatch if item.each == "microbatch" else None
    return item, task.stage, microbatch, task.op.peer if item.is_away else None
