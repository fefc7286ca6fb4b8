"""What the papers say of each method, in numbers: its bubble and the activations that it keeps.

F, I and W are a worker's forward and the two parts of its backward for a microbatch, B = I + W, and
F&B what a forward and a backward take together.  A worker has 1 / p of the model, whatever the
method: with ``v`` stages a worker a pass is a v-th as long, and an activation a v-th as large.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple


@dataclass(frozen=True)
class Setting:
    """What a closed form is evaluated for."""

    workers: int = 4  # p
    microbatches: int = 8  # m, of a batch
    forward: float = 1  # F, in slots
    inputs: float = 1  # I
    weights: float = 1  # W
    overlap: float = 1  # F&B as a share of F + B

    @property
    def backward(self) -> float:
        """B."""
        return self.inputs + self.weights

    @property
    def together(self) -> float:
        """F&B."""
        return self.overlap * (self.forward + self.backward)


class Said(NamedTuple):
    """A formula or a condition of a setting, in words and to be computed."""

    text: str
    of: Callable[[Setting], float]


class ClosedForm(NamedTuple):
    """The formulas of a method."""

    bubble: Said  # slots that the worst worker idles in a batch
    part: str  # "makespan" or "span": of what
    activations: Callable[[Setting], float]  # whole microbatches' that the worst worker keeps
    holds: Said  # for which settings
    paper: str  # where it is printed; "ours" if it is found here


_workers, _microbatches = attrgetter("workers"), attrgetter("microbatches")


def _twice(s: Setting) -> int:
    return 2 * s.workers - 1


def _enough(s: Setting) -> bool:
    return s.microbatches >= s.workers


def _short_weights(s: Setting) -> bool:
    return _enough(s) and s.weights <= min(s.forward, s.inputs)


_ANY = Said("any", lambda s: True)
_ENOUGH = Said("m >= p", _enough)
_TWICE = Said("m >= 2p-1", lambda s: s.microbatches >= _twice(s))
_AS_MANY = Said("m = p", lambda s: s.microbatches == s.workers)
_DIVIDED = Said(
    "p divides m", lambda s: s.microbatches % s.workers == 0 and s.microbatches > s.workers
)
_SHORT = Said("W <= F, I; m >= p", _short_weights)
_SHORT_DIVIDED = Said(
    "W <= F, I; p divides m", lambda s: _short_weights(s) and s.microbatches % s.workers == 0
)
_SHORT_TWICE = Said(
    "W <= F, 2W <= F+I; m >= 2p-1",
    lambda s: (
        s.weights <= min(s.forward, (s.forward + s.inputs) / 2) and s.microbatches >= _twice(s)
    ),
)
_EQUAL = Said(
    "F = I = W; m >= 2p-1",
    lambda s: s.forward == s.inputs == s.weights and s.microbatches >= _twice(s),
)
_CHIMERA = Said(
    "m = p; F <= B <= 2F",
    lambda s: s.microbatches == s.workers and s.forward <= s.backward <= 2 * s.forward,
)
_BETWEEN = Said(
    "W <= I <= F; m >= 2p",
    lambda s: s.weights <= s.inputs <= s.forward and s.microbatches >= 2 * s.workers,
)

_FLUSH = Said("(p-1)(F+B)", lambda s: (s.workers - 1) * (s.forward + s.backward))
_HALF = Said("(p-1)(F+B)/2", lambda s: (s.workers - 1) * (s.forward + s.backward) / 2)
_WAVES = Said("(p-1) max(F,B)", lambda s: (s.workers - 1) * max(s.forward, s.backward))
_H1 = Said("(p-1)(F+I-W)", lambda s: (s.workers - 1) * (s.forward + s.inputs - s.weights))
_H2 = Said("(p-1)(F+I-2W)", lambda s: (s.workers - 1) * (s.forward + s.inputs - 2 * s.weights))
_HALF_H1 = Said(
    "(p-1)(F+I-W)/2", lambda s: (s.workers - 1) * (s.forward + s.inputs - s.weights) / 2
)
_NONE = Said("0", lambda s: 0)
_TWO_WAYS = Said("(p-2) B", lambda s: (s.workers - 2) * s.backward)
_DUAL = Said(
    "(p/2-1)(F&B+F-2W)",
    lambda s: (s.workers / 2 - 1) * (s.together + s.forward - 2 * s.weights),
)
_DUAL_V = Said(
    "(p-1)(F&B+F-2W)/2",
    lambda s: (s.workers - 1) * (s.together + s.forward - 2 * s.weights) / 2,
)
_DEEPSEEK = "ours; DeepSeek prints (p/2-1)(F&B+B-3W)"
_MEGATRON = "Megatron-LM (SC '21) 2.2"
_MAKESPAN, _SPAN = "makespan", "span"

FORMS: Mapping[str, ClosedForm] = {
    "gpipe": ClosedForm(_FLUSH, _MAKESPAN, _microbatches, _ANY, "GPipe 3.2"),
    "flush": ClosedForm(_FLUSH, _MAKESPAN, _workers, _ENOUGH, "PipeDream-2BW 3.2"),
    "eager": ClosedForm(_FLUSH, _MAKESPAN, _twice, _TWICE, "ours"),
    "interleaved": ClosedForm(
        _HALF, _MAKESPAN, lambda s: s.workers + (s.workers - 1) / 2, _DIVIDED, _MEGATRON
    ),
    "gis": ClosedForm(_HALF, _MAKESPAN, _workers, _DIVIDED, "PipeOffload"),
    "looped-bfs": ClosedForm(_HALF, _MAKESPAN, _microbatches, _ENOUGH, "Lamy-Poirier (MLSys '23)"),
    "hanayo": ClosedForm(_WAVES, _MAKESPAN, _workers, _AS_MANY, "ours"),
    "zb-h1": ClosedForm(_H1, _MAKESPAN, _workers, _SHORT, "Zero Bubble 2.1"),
    "zb-h2": ClosedForm(_H2, _SPAN, _twice, _SHORT_TWICE, "Zero Bubble 2.2"),
    "interleaved-zero-bubble": ClosedForm(_HALF_H1, _MAKESPAN, _workers, _SHORT_DIVIDED, "ours"),
    "zb-v": ClosedForm(_NONE, _SPAN, _workers, _EQUAL, "Zero Bubble 6"),
    "chimera": ClosedForm(_TWO_WAYS, _MAKESPAN, _workers, _CHIMERA, "Chimera 3.1"),
    "dualpipe": ClosedForm(_DUAL, _MAKESPAN, lambda s: s.workers + 1, _BETWEEN, _DEEPSEEK),
    "dualpipe-v": ClosedForm(_DUAL_V, _MAKESPAN, lambda s: s.workers + 1 / 2, _BETWEEN, "ours"),
}
"""By the names of :data:`pipekit.schedules.methods.by_name.METHODS`, with two stages a worker."""

ACTIVATIONS: Mapping[str, Callable[[int], float]] = {
    "gis-h": lambda p: (p + math.ceil(3 * p / (3 * p // math.ceil(p / 2)))) / 2,
    "v-half": lambda p: (p + 2) // 2 if p > 1 else 1,
    "v-min": lambda p: (p + 4) // 3,
}
"""Of those whose bubble has no closed form: whole microbatches' activations of p workers, for 3 p
microbatches."""
