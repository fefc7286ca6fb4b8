"""The methods by name, each a function of the same counts: for command lines and comparisons."""

from collections.abc import Callable
from functools import partial

from pipekit.schedules import Schedule, flush, gpipe, model_parallel, pipedream, two_bw

Method = Callable[[int, int, int], Schedule]
"""(stages, microbatches a batch, batches) to a schedule with one update a batch."""


def _unsplit(method: Callable[[int, int], Schedule]) -> Method:
    return lambda stages, microbatches, batches: method(stages, batches)


_PER_MINIBATCH: dict[str, Callable[[int, int], Schedule]] = {
    "model-parallel": model_parallel,
    "pipedream": pipedream,
    "pipedream-vertical-sync": partial(pipedream, vertical_sync=True),
    "pipedream-no-stashing": partial(pipedream, stashing=False),
}

PER_MINIBATCH = frozenset(_PER_MINIBATCH)
"""Those that update after every minibatch: a batch is one microbatch, whatever count is given."""

METHODS: dict[str, Method] = {
    "gpipe": gpipe,
    "flush": flush,
    "2bw": two_bw,
    **{name: _unsplit(method) for name, method in _PER_MINIBATCH.items()},
}
"""Every method that can be asked for by name."""
