"""The data of the puzzles' page: levels, named methods, and rules, as JSON."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product
from typing import Any

from pipekit.explore.browser.picture import causes
from pipekit.explore.puzzles.levels import LEVELS
from pipekit.plots import style
from pipekit.schedules import LOAD, OFFLOAD, Op, Schedule, ScheduleError, Task
from pipekit.schedules.methods.by_name import METHODS, batches_of
from pipekit.schedules.ops import PASSES

OPS = (*PASSES, Op.UPDATE, OFFLOAD, LOAD)
NAMED = (*METHODS, "pipe-offload")
SANDBOX_STAGES, SANDBOX_MICROBATCHES = (2, 3, 4), (4, 6)
Tasks = frozenset[tuple[int, tuple[object, ...]]]


def rules() -> dict[str, Any]:
    """Return each op's rule, slots and look, and the causes of idle time."""
    return {
        "ops": {
            op.letter: {
                "name": op.name,
                "own": _own(op),
                "receives": op.receives and op.receives.value,
                "sends": op.sends and op.sends.value,
                "step": op.receives.step if op.receives else 0,
                "adds": op.adds_gradient,
                "inFlight": op.in_flight,
                "isPass": op.is_pass,
                "stream": op.stream,
                "slots": op.slots,
                "style": style.of(op.name)._asdict(),
            }
            for op in OPS
        },
        "causes": causes(),
        "idle": style.IDLE,
        "grid": style.GRID,
    }


def _own(op: Op) -> list[str]:
    """Return the ops of the same microbatch and stage that it needs one of, the last first."""
    if op.own is None:
        return []
    (item,) = (each for each in op.own.gives if each in (*op.takes, *op.needs))
    return [each.letter for each in reversed(OPS) if item in each.gives and each.own is not op]


def levels() -> list[dict[str, Any]]:
    """Return the levels, each with the named methods that have its tasks."""
    found = []
    for level in LEVELS:
        best, tasks = level.best, _tasks(level.best)
        size = len(best.batches[0])
        able = _named(best.stages, size, size * len(best.batches))
        named = [method(schedule) for schedule in able if _tasks(schedule) == tasks]
        own = {e.name: getattr(level, e.name) for e in fields(level) if e.name != "best"}
        found.append({**own, "rows": rows(best), "named": named})
    return found


def sandbox() -> list[dict[str, Any]]:
    """Return boards without a goal: of some counts, each set of tasks that methods share."""
    boards = []
    for stages, microbatches in product(SANDBOX_STAGES, SANDBOX_MICROBATCHES):
        alike: dict[Tasks, list[Schedule]] = defaultdict(list)
        for schedule in _named(stages, microbatches, microbatches):
            alike[_tasks(schedule)].append(schedule)
        for named in alike.values():
            first = named[0]
            if first.worker_count < 2:
                continue
            names = ", ".join(schedule.name for schedule in named)
            name = f"{first.stages} stages, {microbatches} microbatches: {names}"
            boards.append({"name": name, "rows": rows(first), "named": [*map(method, named)]})
    return boards


def rows(schedule: Schedule) -> list[str]:
    """Return a row of text a worker: ``F2@1:3`` is F2 of stage 1 with weight version 3.

    The stage is left out where it is the worker's own number, and version 0, too.
    """

    def cell(worker: int, task: Task) -> str:
        at = f"@{task.stage}" * (task.stage != worker)
        return f"{task.op.letter}{task.microbatch}{at}" + f":{task.version}" * bool(task.version)

    return [" ".join(cell(w, task) for task in row) for w, row in enumerate(schedule.workers)]


def _named(stages: int, size: int, microbatches: int) -> Iterator[Schedule]:
    for name in NAMED:
        try:
            yield batches_of(name, stages, size, microbatches // size)
        except ScheduleError:  # not with these counts
            continue


def _tasks(schedule: Schedule) -> Tasks:
    return frozenset((worker, task) for worker, row in enumerate(schedule.workers) for task in row)


def method(schedule: Schedule) -> Mapping[str, Any]:
    """Return a schedule's name and :func:`rows`."""
    return {"name": schedule.name, "rows": rows(schedule)}
