"""What one layer of a model costs, and what layers hand on and share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pipekit.schedules import Op
from pipekit.units import MOST, require_amount

INPUT_PART = 0.5
"""Of a backward's seconds, those for its part for the input where nobody has measured them: each of
a linear layer's two products has as many operations as its forward."""

_PARTS = {"backward_input_s": Op.BACKWARD_INPUT, "backward_weight_s": Op.BACKWARD_WEIGHT}
_OF_THE_LAST = {"name", "output_bytes", "saves_output", *_PARTS}
"""Of several layers as one these are the last layer's; the rest adds up."""


@dataclass(frozen=True)
class LayerProfile:
    """What one layer, or some consecutive layers, cost for one microbatch; 0: not measured.

    Attributes:
        name: say "3 Conv2d".
        forward_s, backward_s: seconds of its passes.
        output_bytes: of its output, which travels if a stage ends here (a_l in PipeDream, 3.2).
        parameter_bytes: of its trained parameters (w_l in PipeDream, section 3.2).
        saved_bytes: of the tensors made here that live from the forward to the backward, the output
            among them if ``saves_output``; parameters and the stage's input are counted apart.
        saves_output: whether a backward, this layer's or the next one's, needs the output.
        buffer_bytes: of its buffers (such as running means) and untrained parameters.
        flops: floating-point operations of its forward, a multiply-add being two.
        update_s: seconds of the optimizer's step on its parameters.
        copy_s: seconds to copy its parameters before an update, if they are still to be read.
        backward_input_s, backward_weight_s: seconds of the backward's parts, if it is run in two;
            None: :data:`INPUT_PART` of ``backward_s`` is for the input.
        input_only_bytes: those of ``saved_bytes`` that the part for the input frees.

    Raises:
        ValueError: a number is negative or not finite, only one part of the backward has seconds,
            or more is freed than was saved.
    """

    name: str
    forward_s: float
    backward_s: float
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    saved_bytes: float = 0.0
    saves_output: bool = False
    buffer_bytes: float = 0.0
    flops: float = 0.0
    update_s: float = 0.0
    copy_s: float = 0.0
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    input_only_bytes: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.generic):  # of a row of a table, say
                value = value.item()
                object.__setattr__(self, item.name, value)
            if isinstance(value, str) or (value is None and item.default is None):
                continue
            if not (isinstance(value, (int, float)) and 0 <= value <= MOST):
                raise ValueError(
                    f"layer {self.name!r}: {item.name} must be 0 or a positive number up to "
                    f"{MOST:g}, not {value}"
                )
        if (self.backward_input_s is None) != (self.backward_weight_s is None):
            raise ValueError(
                f"layer {self.name!r}: give both backward_input_s and backward_weight_s, or neither"
            )
        if self.input_only_bytes > self.saved_bytes:
            raise ValueError(
                f"layer {self.name!r}: input_only_bytes {self.input_only_bytes} are part of "
                f"saved_bytes, which are only {self.saved_bytes}"
            )

    def seconds(self, op: Op) -> float:
        """Return the seconds of an op; of an update, without the copying of parameters."""
        input_s, weight_s = self.backward_input_s, self.backward_weight_s
        if input_s is None or weight_s is None:
            input_s, weight_s = INPUT_PART * self.backward_s, (1 - INPUT_PART) * self.backward_s
        return {
            Op.FORWARD: self.forward_s,
            Op.BACKWARD: self.backward_s,
            Op.BACKWARD_INPUT: input_s,
            Op.BACKWARD_WEIGHT: weight_s,
            Op.UPDATE: self.update_s,
        }[op]


@dataclass(frozen=True)
class SkipProfile:
    """What one skip connection costs for one microbatch; see :mod:`pipekit.layers.skips`.

    Layer ``source`` stashes a tensor of so many ``bytes`` by its ``name``, and ``destination`` pops
    it.  If it is not ``saved``, among the ``saved_bytes`` of the layer that made it, it costs
    memory of its own where it is handed over.

    Raises:
        ValueError: the bytes are negative or not finite.
    """

    name: str
    source: int
    destination: int
    bytes: float
    saved: bool = True

    def __post_init__(self) -> None:
        require_amount(f"skip {self.name!r}: bytes", self.bytes)


@dataclass(frozen=True)
class TieProfile:
    """Weights that several ``layers`` share, as the embeddings of input and output.

    Their ``bytes`` are among the ``parameter_bytes`` of the first of these layers.

    Raises:
        ValueError: there are fewer than two layers, or the bytes are negative or not finite.
    """

    layers: tuple[int, ...]
    bytes: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))
        if len(self.layers) < 2:
            raise ValueError(f"weights are shared by two layers or more, not by {self.layers}")
        require_amount("shared weights: bytes", self.bytes)


def renumbered(ties: Iterable[TieProfile], number: Sequence[int]) -> tuple[TieProfile, ...]:
    """Return what layers share once they have other numbers, which several may have in common."""
    places = ((tie, {number[layer] for layer in tie.layers}) for tie in ties)
    return tuple(TieProfile(tuple(at), tie.bytes) for tie, at in places if len(at) > 1)


def combined(layers: Sequence[LayerProfile]) -> LayerProfile:
    """Return what consecutive layers cost as one, whose output is the last one's."""
    last = layers[-1]
    names = [item.name for item in fields(LayerProfile) if item.name not in _OF_THE_LAST]
    costs: dict[str, Any] = {name: sum(getattr(each, name) for each in layers) for name in names}
    if any(layer.backward_input_s is not None for layer in layers):
        for name, op in _PARTS.items():
            costs[name] = sum(layer.seconds(op) for layer in layers)
    name = last.name if len(layers) == 1 else f"{layers[0].name} to {last.name}"
    return replace(last, name=name, **costs)
