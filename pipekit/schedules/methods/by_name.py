"""The methods by name, each a function of the same counts: for command lines and comparisons."""

import re
from collections.abc import Callable, Sequence
from functools import partial

from pipekit.schedules import (
    Schedule,
    ScheduleError,
    flush,
    gpipe,
    interleaved,
    model_parallel,
    pipedream,
    replicate,
    two_bw,
)

Method = Callable[[int | Sequence[int], int, int], Schedule]
"""(stages, microbatches a batch, batches) to a schedule.

``stages`` says how many there are, or on how many workers each of them is.
"""


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
"""Of interleaved, where nothing else is said."""


def _interleaved(stages: int, microbatches: int, batches: int) -> Schedule:
    if stages % _STAGES_A_WORKER:
        raise ScheduleError(
            f"interleaved has two stages a worker: use an even number of stages, not {stages} "
            f"(schedules.interleaved() can have more a worker)"
        )
    return interleaved(stages, microbatches, batches, workers=stages // _STAGES_A_WORKER)


def _unsplit(method: Callable[[int | Sequence[int], int], Schedule]) -> Method:
    return lambda stages, microbatches, batches: method(stages, batches)


_PIPEDREAM: dict[str, Callable[[int | Sequence[int], int], Schedule]] = {
    "pipedream": pipedream,
    "pipedream-vertical-sync": partial(pipedream, vertical_sync=True),
    "pipedream-no-stashing": partial(pipedream, stashing=False),
}

METHODS: dict[str, Method] = {
    "gpipe": _in_pipelines(gpipe),
    "flush": _in_pipelines(flush),
    "interleaved": _in_pipelines(_interleaved),
    "2bw": _in_pipelines(two_bw),
    "model-parallel": _in_pipelines(
        lambda stages, microbatches, batches: model_parallel(stages, batches)
    ),
    **{name: _unsplit(method) for name, method in _PIPEDREAM.items()},
}
"""Every method that can be asked for by name."""

PER_MINIBATCH = frozenset({"model-parallel", *_PIPEDREAM})
"""Those that update after every minibatch: a batch is one microbatch, whatever count is given."""


def stages_a_worker(name: str) -> int:
    """Return how many stages each worker of a method has."""
    return _STAGES_A_WORKER if name == "interleaved" else 1


def parse_replicas(text: str) -> list[int]:
    """Return the workers of each stage from PipeDream's notation: "2-1-1" (Table 1).

    Raises:
        ValueError: the text is not numbers joined by hyphens.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})*", text):
        raise ValueError(f"replicas are the workers of each stage, such as 2-1-1, not {text!r}")
    return [int(part) for part in text.split("-")]
