"""What the papers say of each method, in numbers: its bubble and the activations that it keeps.

F, I and W are a worker's forward and the two parts of its backward for a microbatch, B = I + W, and
F&B what a forward and a backward take together.  A worker has 1 / p of the model, whatever the
method: with ``v`` stages a worker a pass is a v-th as long, and an activation a v-th as large.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Setting:
    """What a closed form is evaluated for.

    Attributes:
        workers: p.
        microbatches: m, of a batch.
        forward: F, in slots.
        inputs: I.
        weights: W.
        overlap: F&B as a share of F + B.
    """

    workers: int = 4
    microbatches: int = 8
    forward: float = 1
    inputs: float = 1
    weights: float = 1
    overlap: float = 1

    @property
    def backward(self) -> float:
        """B."""
        return self.inputs + self.weights

    @property
    def together(self) -> float:
        """F&B."""
        return self.overlap * (self.forward + self.backward)


@dataclass(frozen=True)
class ClosedForm:
    """The formulas of a method.

    Attributes:
        bubble: what the worst worker idles in a batch, in words.
        part: "makespan" or "span": of what.
        slots: the same in numbers.
        activations: whole microbatches' that the worst worker keeps.
        holds: for which settings.
        where: the same in words.
        paper: where it is printed; "ours" if it is found here.
    """

    bubble: str
    part: str
    slots: Callable[[Setting], float]
    activations: Callable[[Setting], float]
    holds: Callable[[Setting], bool]
    where: str
    paper: str


def _always(_: Setting) -> bool:
    return True


def _enough(s: Setting) -> bool:
    return s.microbatches >= s.workers


def _short_weights(s: Setting) -> bool:
    return _enough(s) and s.weights <= min(s.forward, s.inputs)


def _equal(s: Setting) -> bool:
    return s.forward == s.inputs == s.weights and s.microbatches >= 2 * s.workers - 1


def _between(s: Setting) -> bool:
    return s.weights <= s.inputs <= s.forward and s.microbatches >= 2 * s.workers


_M = "m >= p"
_FLUSH = "(p-1)(F+B)"
_HALVES = "(p-1)(F+B)/2"
_ZERO = "(p-1)(F+I-W)"

FORMS: Mapping[str, ClosedForm] = MappingProxyType(
    {
        "gpipe": ClosedForm(
            _FLUSH,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.backward),
            lambda s: s.microbatches,
            _always,
            "any",
            "GPipe 3.2",
        ),
        "flush": ClosedForm(
            _FLUSH,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.backward),
            lambda s: s.workers,
            _enough,
            _M,
            "PipeDream-2BW 3.2",
        ),
        "eager": ClosedForm(
            _FLUSH,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.backward),
            lambda s: 2 * s.workers - 1,
            lambda s: s.microbatches >= 2 * s.workers - 1,
            "m >= 2p-1",
            "ours",
        ),
        "interleaved": ClosedForm(
            _HALVES,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.backward) / 2,
            lambda s: s.workers + (s.workers - 1) / 2,
            lambda s: s.microbatches % s.workers == 0 and s.microbatches > s.workers,
            "p divides m",
            "Megatron-LM (SC '21) 2.2",
        ),
        "looped-bfs": ClosedForm(
            _HALVES,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.backward) / 2,
            lambda s: s.microbatches,
            _enough,
            _M,
            "Lamy-Poirier (MLSys '23)",
        ),
        "hanayo": ClosedForm(
            "(p-1) max(F,B)",
            "makespan",
            lambda s: (s.workers - 1) * max(s.forward, s.backward),
            lambda s: s.workers,
            lambda s: s.microbatches == s.workers,
            "m = p",
            "ours",
        ),
        "zb-h1": ClosedForm(
            _ZERO,
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.inputs - s.weights),
            lambda s: s.workers,
            _short_weights,
            "W <= F, I; m >= p",
            "Zero Bubble 2.1",
        ),
        "zb-h2": ClosedForm(
            "(p-1)(F+I-2W)",
            "span",
            lambda s: (s.workers - 1) * (s.forward + s.inputs - 2 * s.weights),
            lambda s: 2 * s.workers - 1,
            lambda s: (
                s.weights <= s.forward
                and 2 * s.weights <= s.forward + s.inputs
                and s.microbatches >= 2 * s.workers - 1
            ),
            "W <= F, 2W <= F+I; m >= 2p-1",
            "Zero Bubble 2.2",
        ),
        "interleaved-zero-bubble": ClosedForm(
            "(p-1)(F+I-W)/2",
            "makespan",
            lambda s: (s.workers - 1) * (s.forward + s.inputs - s.weights) / 2,
            lambda s: s.workers,
            lambda s: _short_weights(s) and s.microbatches % s.workers == 0,
            "W <= F, I; p divides m",
            "ours",
        ),
        "zb-v": ClosedForm(
            "0",
            "span",
            lambda s: 0,
            lambda s: s.workers,
            _equal,
            "F = I = W; m >= 2p-1",
            "Zero Bubble 6",
        ),
        "chimera": ClosedForm(
            "(p-2) B",
            "makespan",
            lambda s: (s.workers - 2) * s.backward,
            lambda s: s.workers,
            lambda s: s.microbatches == s.workers and s.forward <= s.backward <= 2 * s.forward,
            "m = p; F <= B <= 2F",
            "Chimera 3.1",
        ),
        "dualpipe": ClosedForm(
            "(p/2-1)(F&B+F-2W)",
            "makespan",
            lambda s: (s.workers / 2 - 1) * (s.together + s.forward - 2 * s.weights),
            lambda s: s.workers + 1,
            _between,
            "W <= I <= F; m >= 2p",
            "ours; DeepSeek prints (p/2-1)(F&B+B-3W)",
        ),
        "dualpipe-v": ClosedForm(
            "(p-1)(F&B+F-2W)/2",
            "makespan",
            lambda s: (s.workers - 1) * (s.together + s.forward - 2 * s.weights) / 2,
            lambda s: s.workers + 1 / 2,
            _between,
            "W <= I <= F; m >= 2p",
            "ours",
        ),
    }
)
"""By the names of :data:`pipekit.schedules.methods.by_name.METHODS`, with two stages a worker."""

ACTIVATIONS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {"v-half": lambda p: (p + 2) // 2 if p > 1 else 1, "v-min": lambda p: (p + 4) // 3}
)
"""Of those whose bubble has no closed form: whole microbatches' activations of p workers."""
