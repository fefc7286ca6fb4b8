"""What lies on a worker when: which task gives what another one needs, in the order of its list."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from pipekit.schedules.ops import GRADIENTS, SENT_GRADIENTS, SUMS, WEIGHTS, Item
from pipekit.schedules.task import Task

_Key = tuple[Item, int, int | None, int | None]
"""An item, its stage, its microbatch if each has one, and the worker where it lies if away."""
_Way = tuple[Item, int, int | None, int | None]
"""An item, its stage, the worker that sends it and the one that takes it."""


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
        others: of tasks, the further ones behind which they have to come.
        missing: what is not there when it is needed.
        untaken: tasks that send what their peer never takes.
        summed: of tasks that take gradients, the tasks whose gradients these are.
    """

    def __init__(self, workers: Sequence[Sequence[Task]]) -> None:
        self.own: dict[int, int] = {}
        self.others: dict[int, list[int]] = {}
        self.missing: list[Missing] = []
        self.untaken: list[int] = []
        self.summed: dict[int, list[int]] = {}
        # What workers send one another: the numbers and versions of the tasks at both ends.
        self._sent: dict[_Way, list[tuple[int, int]]] = defaultdict(list)
        self._taken: dict[_Way, list[tuple[int, int]]] = defaultdict(list)
        first = 0
        for worker, tasks in enumerate(workers):
            self._follow(worker, tasks, first)
            first += len(tasks)
        for way in {**self._sent, **self._taken}:  # the first takes what the first has sent
            for send, take in zip_longest(self._sent[way], self._taken[way]):
                if take is None:
                    self.untaken.append(send[0])
                elif send is None or send[1] != take[1]:
                    self.missing.append(Missing(take[0], way[0], send and send[0]))
                else:
                    self.others.setdefault(take[0], []).append(send[0])
                    if way[0] is SENT_GRADIENTS:
                        self.summed[take[0]] = [send[0]]

    def _follow(self, worker: int, tasks: Sequence[Task], first: int) -> None:
        # An item of a stage is there from the start, unless tasks give it, or take it away.
        moved = {
            (item, stage)
            for op, stage, *_ in tasks
            for item in (*op.gives, *(op.takes if op.is_pass else ()))
            if item.each == "stage"
        }
        given: dict[_Key, list[int]] = defaultdict(list)  # the newest first
        gone: dict[_Key, int] = {}
        readers: dict[_Key, list[int]] = {}
        for number, task in enumerate(tasks, first):
            op, stage, _, version = task
            for item in (*op.takes, *op.needs):
                if item.is_sent:
                    self._taken[item, stage, op.peer, worker].append((number, version))
                    continue
                if item.each == "stage" and (item, stage) not in moved:
                    continue
                key = _key(item, task)
                givers = given[key] if item is GRADIENTS else given[key][-1:]
                is_old = givers and item is WEIGHTS and op.is_pass
                if not givers or (is_old and tasks[givers[0] - first].version != version):
                    before = gone.get(key, givers[0] if givers else None)
                    self.missing.append(Missing(number, item, before))
                    continue
                if item.each == "microbatch":
                    self.own.setdefault(number, givers[0])
                behind = [*givers, *(readers.pop(key, ()) if item in op.takes else ())]
                self.others.setdefault(number, []).extend(behind)
                readers.setdefault(key, []).append(number)
                if item in op.takes:
                    given[key] = given[key][: -len(givers)]
                    gone[key] = number
                    if item is GRADIENTS:
                        self.summed[number] = givers
            if not op.is_pass:  # gradients may have come on another stream
                key = GRADIENTS, stage, None, None
                self.summed[number] = given.pop(key, [])
                self.others.setdefault(number, []).extend(self.summed[number])
                if self.summed[number]:
                    gone[key] = number
            for item in op.gives:
                if item.is_sent:
                    self._sent[item, stage, worker, op.peer].append((number, version))
                    continue
                key = _key(item, task)
                is_one_more = op.borrows or item is GRADIENTS
                given[key] = [number, *(given[key] if is_one_more else ())]
            if op.adds_gradient and given.pop((SUMS, stage, None, None), []):
                gone[SUMS, stage, None, None] = number  # they lack the new one


def _key(item: Item, task: Task) -> _Key:
    microbatch = task.microbatch if item.each == "microbatch" else None
    return item, task.stage, microbatch, task.op.peer if item.is_away else None
