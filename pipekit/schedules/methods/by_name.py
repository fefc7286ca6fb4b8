"""The methods by name, each a function of the same counts: for command lines and comparisons."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from numbers import Integral
from operator import index
from typing import cast

from pipekit import names
from pipekit.schedules import Schedule, ScheduleError, replicate
from pipekit.schedules.methods.flushed import require_positive


def _named(
    name: str,
    stages: int | Sequence[int] | None = None,
    microbatches: int = 1,
    *,
    workers: int | None = None,
) -> Schedule:
    """Return a schedule without end of a method of :data:`pipekit.names.TABLES`.

    Args:
        name: the method's.
        stages: how many, or the workers of each; None: as many as these have at least.
        microbatches: of a batch.
        workers: how many share the stages; None: as few stages on each as the method has.

    Raises:
        ScheduleError: the method has no such schedule; the message says what to use.
    """
    entry = names.TABLES[name]
    if workers is not None:
        require_positive(workers=workers)
    if stages is None:
        stages = (workers or 1) * entry.stages_a_worker
    if isinstance(stages, (int, Integral)):
        stages = index(stages)
        require_positive(stages=stages)
    replicas = [1] * stages if isinstance(stages, int) else list(stages)
    if entry.replicas == "stages":
        return _on(workers, cast(Schedule, entry.load()(stages)))
    copies = max(replicas, default=1)
    if entry.replicas == "none" and copies > 1:
        raise ScheduleError(f"{name} has each stage on one worker: use stages in place of them")
    if len(set(replicas)) > 1:
        alike, given = "-".join(["2"] * len(replicas)), "-".join(map(str, replicas))
        raise ScheduleError(
            f"only PipeDream has stages on different numbers of workers: use {alike}, say, in "
            f"place of {given}"
        )
    counts = (len(replicas), microbatches) if entry.microbatches else (len(replicas),)
    if not entry.takes_workers:
        schedule: Schedule = entry.load()(*counts)
    else:
        share, more = divmod(len(replicas), entry.stages_a_worker)
        if workers is None and more:
            raise ScheduleError(
                f"{name} has two stages a worker: use an even number of stages, not "
                f"{len(replicas)}, or say how many workers there are"
            )
        schedule = entry.load()(*counts, workers=workers // copies if workers else share)
    return _on(workers, schedule if copies == 1 else replicate(schedule, copies))


def _on(workers: int | None, schedule: Schedule) -> Schedule:
    if workers not in (None, schedule.worker_count):
        raise ScheduleError(
            f"{schedule.title} puts {schedule.stages} stages on {schedule.worker_count} workers, "
            f"not {workers}: leave out stages, or workers"
        )
    return schedule


METHODS = {name: partial(_named, name) for name in names.METHODS}
"""Every method that can be asked for by name, and that an engine trains."""

TABLES = {name: partial(_named, name) for name in names.TABLES}
"""All of them."""

PER_MINIBATCH = frozenset(name for name, each in names.METHODS.items() if not each.microbatches)
"""Those that update after every minibatch: a batch is one microbatch, whatever count is given."""


def batches_of(name: str, stages: int | Sequence[int], microbatches: int, batches: int) -> Schedule:
    """Return so many batches of a method; one that cuts no minibatch gets as many whole ones."""
    each = microbatches if name in PER_MINIBATCH else 1
    return TABLES[name](stages, microbatches).take(batches * each)


def named_schedules(stages: int, workers: int, microbatches: int) -> Iterator[Schedule]:
    """Yield one batch of every method that flushes and has so many stages, each on one worker."""
    for name, method in METHODS.items():
        if name in PER_MINIBATCH:
            continue
        try:
            schedule = method(stages, microbatches)
        except ScheduleError:  # not with these counts
            continue
        fits = all(len(homes) == 1 for homes in schedule.stage_workers)
        if fits and schedule.is_closed and schedule.stashing and schedule.worker_count == workers:
            yield schedule.take(1)


def stages_a_worker(name: str) -> int:
    """Return how many stages a method has for each worker, two directions counted as one."""
    return names.TABLES[name].stages_a_worker


def parse_replicas(text: str) -> list[int]:
    """Return the workers of each stage from PipeDream's notation: "2-1-1" (Table 1)."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})*", text):
        raise ValueError(f"replicas are the workers of each stage, e.g. 2-1-1, not {text!r}")
    return [int(part) for part in text.split("-")]
