"""What one layer of a model costs, and one skip connection."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pipekit.profiling.values import ValueProfile
from pipekit.schedules import Op

INPUT_PART = 0.5
"""Of a backward's seconds, those that count for its part for the input where nobody has measured
them: half, since each of a linear layer's two products has as many operations as its forward."""


@dataclass(frozen=True)
class LayerProfile:
    """What one layer, or some consecutive layers, cost for one microbatch.

    A backward needs tensors that a forward has made.  Each of them is counted once, in the layer
    that made it: parameters and the stage's input are counted apart.

    Attributes:
        name: say "3 Conv2d".
        forward_s: seconds of its forward.
        backward_s: seconds of its backward.
        output_bytes: bytes of its output, which is what travels if a stage ends here (a_l in
            PipeDream, section 3.2).
        parameter_bytes: bytes of its trained parameters (w_l in PipeDream, section 3.2).
        saved_bytes: bytes of the tensors made here that live from the forward to the backward,
            the output among them if ``saves_output``.
        saves_output: whether a backward, this layer's or the next one's, needs the output.
        buffer_bytes: bytes of its buffers (such as running means) and untrained parameters.
        flops: floating-point operations of its forward, a multiply-add being two.
        update_s: seconds of the optimizer's step on its parameters; 0 if it was not measured.
        copy_s: seconds to copy its parameters, which an update does first if the version before it
            is still to be read (weight stashing, 2BW); 0 if it was not measured.
        backward_input_s: seconds of the backward's part for the input, if it is run in two parts;
            None if it was not measured: then :data:`INPUT_PART` of ``backward_s`` counts.
        backward_weight_s: likewise, of its part for the weights; None: the rest of ``backward_s``.
        input_only_bytes: those of ``saved_bytes`` that the part for the weights does not need, so
            that the part for the input frees them; 0 if it was not measured, the most cautious.

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
            if isinstance(value, str) or (value is None and item.default is None):
                continue
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ValueError(
                    f"layer {self.name!r}: {item.name} must be 0 or a positive number, not {value}"
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
        """Return the seconds of an op; of an update, without the copying of parameters.

        Where the parts of a backward were not measured, they are assumed (:data:`INPUT_PART`).
        """
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

    Attributes:
        name: in the whole model.
        source: the layer that stashes it.
        destination: the layer behind that which pops it.
        bytes: of the tensor.
        saved: whether a backward needs it, so that it is among the ``saved_bytes`` of the layer
            that made it; otherwise it costs memory of its own where it is handed over.

    Raises:
        ValueError: the bytes are negative or not finite.
    """

    name: str
    source: int
    destination: int
    bytes: float
    saved: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.bytes < math.inf:
            raise ValueError(
                f"skip {self.name!r}: bytes must be 0 or a positive number, not {self.bytes}"
            )


@dataclass(frozen=True)
class TieProfile:
    """Weights that several layers share, as the embeddings of input and output.

    Attributes:
        layers: those that have them, in order.
        bytes: of the weights; they are among the ``parameter_bytes`` of the first of these layers.

    Raises:
        ValueError: there are fewer than two layers, or the bytes are negative or not finite.
    """

    layers: tuple[int, ...]
    bytes: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))
        if len(self.layers) < 2:
            raise ValueError(f"weights are shared by two layers or more, not by {self.layers}")
        if not 0 <= self.bytes < math.inf:
            raise ValueError(
                f"shared weights: bytes must be 0 or a positive number, not {self.bytes}"
            )


def renumbered(ties: Iterable[TieProfile], number: Sequence[int]) -> tuple[TieProfile, ...]:
    """Return what layers share once they have other numbers, which several may have in common.

    Args:
        ties: between them.
        number: of each.
    """
    places = ((tie, {number[layer] for layer in tie.layers}) for tie in ties)
    return tuple(TieProfile(tuple(at), tie.bytes) for tie, at in places if len(at) > 1)


class Contents(NamedTuple):
    """The arguments of :class:`pipekit.Profile`, in their order: estimated, or read from a file."""

    layers: tuple[LayerProfile, ...]
    rows: int
    input_bytes: float
    provenance: Mapping[str, Any]
    skips: tuple[SkipProfile, ...] = ()
    values: tuple[ValueProfile, ...] = ()
    relayed: bool = False
    ties: tuple[TieProfile, ...] = ()


def combined(layers: Sequence[LayerProfile]) -> LayerProfile:
    """Return what consecutive layers cost as one, whose output is the last one's."""
    last = layers[-1]
    known = any(layer.backward_input_s is not None for layer in layers)
    return LayerProfile(
        name=last.name if len(layers) == 1 else f"{layers[0].name} to {last.name}",
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        output_bytes=last.output_bytes,
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        saved_bytes=sum(layer.saved_bytes for layer in layers),
        saves_output=last.saves_output,
        buffer_bytes=sum(layer.buffer_bytes for layer in layers),
        flops=sum(layer.flops for layer in layers),
        update_s=sum(layer.update_s for layer in layers),
        copy_s=sum(layer.copy_s for layer in layers),
        backward_input_s=_sum_of(layers, Op.BACKWARD_INPUT) if known else None,
        backward_weight_s=_sum_of(layers, Op.BACKWARD_WEIGHT) if known else None,
        input_only_bytes=sum(layer.input_only_bytes for layer in layers),
    )


def _sum_of(layers: Sequence[LayerProfile], op: Op) -> float:
    return sum(layer.seconds(op) for layer in layers)
