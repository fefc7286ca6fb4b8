"""What the papers say of each method, in numbers: its bubble and the activations that it keeps.

F, I and W are a worker's forward and the two parts of its backward for a microbatch, B = I + W, and
FB what a forward and a backward take together; p are the workers, and m a batch's microbatches.
With ``v`` stages a worker a pass is a v-th as long, and an activation a v-th as large.  Formulas
are text, which tables print and :meth:`Setting.value` computes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Setting:
    """What a closed form is evaluated for."""

    workers: int = 4  # p
    microbatches: int = 8  # m, of a batch
    forward: float = 1  # F, in slots
    inputs: float = 1  # I
    weights: float = 1  # W
    overlap: float = 1  # FB as a share of F + B

    @property
    def backward(self) -> float:
        """B."""
        return self.inputs + self.weights

    def value(self, formula: str) -> Any:
        """Return a formula's number, or whether a condition holds."""
        symbols = {
            "p": self.workers,
            "m": self.microbatches,
            "F": self.forward,
            "I": self.inputs,
            "W": self.weights,
            "B": self.backward,
            "FB": self.overlap * (self.forward + self.backward),
        }
        return eval(formula, {"ceil": math.ceil}, symbols)


class ClosedForm(NamedTuple):
    """The formulas of a method."""

    bubble: str  # slots that the worst worker idles in a batch
    part: str  # "makespan" or "span": of what
    activations: str  # whole microbatches' that the worst worker keeps
    holds: str  # for which settings
    paper: str  # where it is printed; "ours" if it is found here


_TWICE = "2*p - 1"
_ENOUGH = "m >= p"
_DIVIDED = "m % p == 0 and m > p"
_SHORT = "W <= min(F, I) and m >= p"
_FLUSH = "(p - 1) * (F + B)"
_HALF = "(p - 1) * (F + B) / 2"
_DEEPSEEK = "ours; DeepSeek prints (p/2-1)(F&B+B-3W)"
_BETWEEN = "W <= I <= F and m >= 2*p"

FORMS: Mapping[str, ClosedForm] = {
    "gpipe": ClosedForm(_FLUSH, "makespan", "m", "m > 0", "GPipe 3.2"),
    "flush": ClosedForm(_FLUSH, "makespan", "p", _ENOUGH, "PipeDream-2BW 3.2"),
    "eager": ClosedForm(_FLUSH, "makespan", _TWICE, f"m >= {_TWICE}", "ours"),
    "interleaved": ClosedForm(
        _HALF, "makespan", "p + (p - 1) / 2", _DIVIDED, "Megatron-LM (SC '21) 2.2"
    ),
    "gis": ClosedForm(_HALF, "makespan", "p", _DIVIDED, "PipeOffload"),
    "looped-bfs": ClosedForm(_HALF, "makespan", "m", _ENOUGH, "Lamy-Poirier (MLSys '23)"),
    "hanayo": ClosedForm("(p - 1) * max(F, B)", "makespan", "p", "m == p", "ours"),
    "zb-h1": ClosedForm("(p - 1) * (F + I - W)", "makespan", "p", _SHORT, "Zero Bubble 2.1"),
    "zb-h2": ClosedForm(
        "(p - 1) * (F + I - 2*W)",
        "span",
        _TWICE,
        f"W <= F and 2*W <= F + I and m >= {_TWICE}",
        "Zero Bubble 2.2",
    ),
    "interleaved-zero-bubble": ClosedForm(
        "(p - 1) * (F + I - W) / 2", "makespan", "p", f"{_SHORT} and m % p == 0", "ours"
    ),
    "zb-v": ClosedForm("0", "span", "p", f"F == I == W and m >= {_TWICE}", "Zero Bubble 6"),
    "chimera": ClosedForm(
        "(p - 2) * B", "makespan", "p", "m == p and F <= B <= 2*F", "Chimera 3.1"
    ),
    "dualpipe": ClosedForm("(p/2 - 1) * (FB + F - 2*W)", "makespan", "p + 1", _BETWEEN, _DEEPSEEK),
    "dualpipe-v": ClosedForm(
        "(p - 1) * (FB + F - 2*W) / 2", "makespan", "p + 1/2", _BETWEEN, "ours"
    ),
}
"""By the names of :data:`pipekit.schedules.methods.by_name.METHODS`, with two stages a worker."""

ACTIVATIONS: Mapping[str, str] = {
    "gis-h": "(p + ceil(3*p / (3*p // ceil(p/2)))) / 2",
    "v-half": "(p + 2) // 2 if p > 1 else 1",
    "v-min": "(p + 4) // 3",
}
"""Of those whose bubble has no closed form: whole microbatches' activations of p workers, for 3 p
microbatches."""
