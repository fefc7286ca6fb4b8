"""The methods by name, each a function of the same counts: for command lines and comparisons."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from pipekit.schedules import (
    Schedule,
    ScheduleError,
    chimera,
    dualpipe,
    dualpipe_v,
    eager,
    flush,
    gpipe,
    hanayo,
    interleaved,
    interleaved_zero_bubble,
    looped_bfs,
    model_parallel,
    paci,
    pipedream,
    replicate,
    two_bw,
    v_half,
    v_min,
    zb_h1,
    zb_h2,
    zb_v,
)

Method = Callable[[int | Sequence[int], int, int], Schedule]
"""(stages, microbatches a batch, batches) to a schedule.

``stages`` says how many there are, or on how many workers each of them is.
"""


class _Looped(Protocol):
    __name__: str

    def __call__(
        self, stages: int, microbatches: int, batches: int, *, workers: int
    ) -> Schedule: ...


def _in_pipelines(method: Callable[[int, int, int], Schedule]) -> Method:
    """Return a method whose replicas are parallel pipelines, of which all stages have as many."""

    def made(stages: int | Sequence[int], microbatches: int, batches: int) -> Schedule:
        replicas = [1] * stages if isinstance(stages, int) else stages
        if len(set(replicas)) > 1:
            raise ScheduleError(
                f"only PipeDream has stages on different numbers of workers: use "
                f"{'-'.join(['2'] * len(replicas))}, say, in place of "
                f"{'-'.join(map(str, replicas))}"
            )
        schedule = method(len(replicas), microbatches, batches)
        return schedule if replicas[0] == 1 else replicate(schedule, replicas[0])

    return made


_STAGES_A_WORKER = 2
"""Of methods with several, where nothing else is said."""


def _looped(name: str, method: _Looped) -> Method:
    """Return a method that can have any number of stages a worker, with two."""

    def made(stages: int, microbatches: int, batches: int) -> Schedule:
        if stages % _STAGES_A_WORKER:
            raise ScheduleError(
                f"{name} has two stages a worker: use an even number of stages, not {stages} "
                f"(schedules.{method.__name__}() can have more a worker)"
            )
        return method(stages, microbatches, batches, workers=stages // _STAGES_A_WORKER)

    return _in_pipelines(made)


def _alone(name: str, method: Callable[[int, int, int], Schedule]) -> Method:
    """Return a method that has each stage on one worker."""

    def made(stages: int | Sequence[int], microbatches: int, batches: int) -> Schedule:
        replicas = [1] * stages if isinstance(stages, int) else stages
        if max(replicas) > 1:
            raise ScheduleError(f"{name} has each stage on one worker: use stages in place of them")
        return method(len(replicas), microbatches, batches)

    return made


def _unsplit(method: Callable[[int | Sequence[int], int], Schedule]) -> Method:
    return lambda stages, microbatches, batches: method(stages, batches)


_PIPEDREAM: dict[str, Callable[[int | Sequence[int], int], Schedule]] = {
    "pipedream": pipedream,
    "pipedream-vertical-sync": partial(pipedream, vertical_sync=True),
    "pipedream-no-stashing": partial(pipedream, stashing=False),
}
_STRAIGHT: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": gpipe,
    "flush": flush,
    "eager": eager,
    "2bw": two_bw,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
}
_LOOPED: dict[str, _Looped] = {
    "interleaved": interleaved,
    "interleaved-zero-bubble": interleaved_zero_bubble,
    "looped-bfs": looped_bfs,
    "hanayo": hanayo,
}
_V: dict[str, Callable[[int, int, int], Schedule]] = {
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe-v": dualpipe_v,
}
_TWO_WAYS: dict[str, Callable[[int, int, int], Schedule]] = {
    "chimera": chimera,
    "dualpipe": dualpipe,
}

METHODS: dict[str, Method] = {
    **{name: _in_pipelines(method) for name, method in _STRAIGHT.items()},
    **{name: _looped(name, method) for name, method in _LOOPED.items()},
    **{name: _in_pipelines(method) for name, method in (_V | _TWO_WAYS).items()},
    "model-parallel": _in_pipelines(
        lambda stages, microbatches, batches: model_parallel(stages, batches)
    ),
    "paci": _alone("PACI", paci),
    **{name: _unsplit(method) for name, method in _PIPEDREAM.items()},
}
"""Every method that can be asked for by name."""

PER_MINIBATCH = frozenset({"model-parallel", *_PIPEDREAM})
"""Those that update after every minibatch: a batch is one microbatch, whatever count is given."""


def named_schedules(stages: int, workers: int, microbatches: int) -> Iterator[Schedule]:
    """Yield one batch of every method that flushes and has so many stages on so many workers."""
    for name, method in METHODS.items():
        if name in PER_MINIBATCH or name in ("2bw", "paci"):
            continue
        try:
            schedule = method(stages, microbatches, 1)
        except ScheduleError:  # not with these counts
            continue
        if len(schedule.workers) == workers:
            yield schedule


def stages_a_worker(name: str) -> int:
    """Return how many stages a method has for each worker.

    With two directions that is one, which has two copies.
    """
    return _STAGES_A_WORKER if name in _LOOPED or name in _V else 1


def parse_replicas(text: str) -> list[int]:
    """Return the workers of each stage from PipeDream's notation: "2-1-1" (Table 1).

    Raises:
        ValueError: the text is not numbers joined by hyphens.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})*", text):
        raise ValueError(f"replicas are the workers of each stage, such as 2-1-1, not {text!r}")
    return [int(part) for part in text.split("-")]
