"""The methods by name, each a function of the same counts: for command lines and comparisons."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

from pipekit import names
from pipekit.schedules import Schedule, ScheduleError, replicate
from pipekit.schedules.methods.flushed import require_positive

Method = Callable[[int | Sequence[int], int], Schedule]
"""(stages, microbatches a batch) to a schedule without end.

``stages`` says how many there are, or on how many workers each of them is.
"""


def _made(name: str, stages: int | Sequence[int], microbatches: int) -> Schedule:
    """Return a method's schedule."""
    entry = names.METHODS[name]
    if isinstance(stages, int):
        require_positive(stages=stages)
    replicas = [1] * stages if isinstance(stages, int) else list(stages)
    if entry.replicas == "stages":
        return cast(Schedule, entry.load()(stages))
    copies = max(replicas, default=1)
    if entry.replicas == "none" and copies > 1:
        raise ScheduleError(f"{name} has each stage on one worker: use stages in place of them")
    if len(set(replicas)) > 1:
        raise ScheduleError(
            f"only PipeDream has stages on different numbers of workers: use "
            f"{'-'.join(['2'] * len(replicas))}, say, in place of {'-'.join(map(str, replicas))}"
        )
    counts = (len(replicas), microbatches) if entry.microbatches else (len(replicas),)
    workers, more = divmod(len(replicas), entry.stages_a_worker)
    if entry.takes_workers and more:
        raise ScheduleError(
            f"{name} has two stages a worker: use an even number of stages, not {len(replicas)} "
            f"(schedules.{entry.where.partition(':')[2]}() can have more a worker)"
        )
    options = {"workers": workers} if entry.takes_workers else {}
    schedule: Schedule = entry.load()(*counts, **options)
    return schedule if copies == 1 else replicate(schedule, copies)


METHODS: dict[str, Method] = {name: partial(_made, name) for name in names.METHODS}
"""Every method that can be asked for by name."""

PER_MINIBATCH = frozenset(name for name, each in names.METHODS.items() if not each.microbatches)
"""Those that update after every minibatch: a batch is one microbatch, whatever count is given."""


def batches_of(name: str, stages: int | Sequence[int], microbatches: int, batches: int) -> Schedule:
    """Return so many batches of a method; one that cuts no minibatch gets as many whole ones."""
    each = microbatches if name in PER_MINIBATCH else 1
    return METHODS[name](stages, microbatches).take(batches * each)


def named_schedules(
    stages: int, workers: int, microbatches: int, two_directions: bool = True
) -> Iterator[Schedule]:
    """Yield one batch of every method that flushes and has so many stages on so many workers.

    ``two_directions`` says whether a stage may be on two workers, as Chimera's are.
    """
    for name, method in METHODS.items():
        if name in PER_MINIBATCH:
            continue
        try:
            schedule = method(stages, microbatches)
        except ScheduleError:  # not with these counts
            continue
        fits = two_directions or all(len(homes) == 1 for homes in schedule.stage_workers)
        if fits and schedule.is_closed and schedule.stashing and schedule.worker_count == workers:
            yield schedule.take(1)


def stages_a_worker(name: str) -> int:
    """Return how many stages a method has for each worker.

    With two directions that is one, which has two copies.
    """
    return names.METHODS[name].stages_a_worker


def parse_replicas(text: str) -> list[int]:
    """Return the workers of each stage from PipeDream's notation: "2-1-1" (Table 1)."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})*", text):
        raise ValueError(f"replicas are the workers of each stage, e.g. 2-1-1, not {text!r}")
    return [int(part) for part in text.split("-")]
