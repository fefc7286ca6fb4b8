"""What each layer of a model costs: seconds, bytes and operations."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipekit.profiling.values import ValueProfile, hops
from pipekit.reading import read_json
from pipekit.schedules import Op

if TYPE_CHECKING:
    from torch import nn

    from pipekit.clusters import Device
    from pipekit.trees import Tree

_FORMAT = "pipekit profile 1"
_MOST_ROWS = 10**9
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
    """What one skip connection costs for one microbatch; see :mod:`pipekit.skips`.

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
class Profile:
    """The costs of a chain or a graph of layers for a microbatch of ``rows`` rows.

    A graph is written as a chain, too: its layers stand in an order in which they can run, and its
    values travel as outputs and skips.  So whatever takes a chain takes it; a planner may choose
    another order (:meth:`in_order`).

    Attributes:
        layers: in the order in which they run.
        rows: rows of the microbatch that all numbers are for.
        input_bytes: bytes of the model's input.
        provenance: where the numbers come from; see :func:`pipekit.provenance.provenance`.
        skips: what goes from a layer to one far behind it, beside the chain.
        values: what layers hand to which others, if they are a graph; empty for a chain.  The
            layers' ``output_bytes`` and the skips then follow from them, whatever was given: a
            value goes from its source to its first user, from there to the second, and so on.

    Raises:
        ValueError: there is no layer, or no row, or a skip's or a value's ends are not layers in
            order, or ``input_bytes`` is negative or not finite.
    """

    layers: tuple[LayerProfile, ...]
    rows: int = 1
    input_bytes: float = 0.0
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    skips: tuple[SkipProfile, ...] = ()
    values: tuple[ValueProfile, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "skips", tuple(self.skips))
        object.__setattr__(self, "values", tuple(self.values))
        if not self.layers:
            raise ValueError("a profile needs at least one layer")
        if not 1 <= self.rows <= _MOST_ROWS:
            raise ValueError(f"a profile is of 1 to {_MOST_ROWS:,} rows, not {self.rows}")
        if not 0 <= self.input_bytes < math.inf:
            raise ValueError(f"input_bytes must be 0 or a positive number, not {self.input_bytes}")
        for skip in self.skips:
            if not 0 <= skip.source < skip.destination < len(self):
                raise ValueError(
                    f"skip {skip.name!r} cannot go from layer {skip.source} to layer "
                    f"{skip.destination} in a chain of {len(self)}"
                )
        for value in self.values:
            if not 0 <= max(value.source or 0, *value.users, 0) < len(self):
                raise ValueError(f"{value} needs layers that are not among the {len(self)}")
        if self.values:
            self._let_values_travel()

    def _let_values_travel(self) -> None:
        """Set the layers' outputs and the skips to what the values say.

        A layer's output is what it made, the backward needs, and the next layer reads; the rest
        are skips.  What the last layer made and nobody reads is the model's output.
        """
        outputs = [0.0] * len(self)
        skips = []
        for hop in hops(self.values):
            value = self.values[hop.value]
            if hop.own and value.saved and hop.destination == hop.source + 1:
                outputs[hop.source] += value.bytes
            else:
                name = f"value {hop.value} from {hop.source} to {hop.destination}"
                skips.append(
                    SkipProfile(name, hop.source, hop.destination, value.bytes, value.saved)
                )
        last = len(self) - 1
        outputs[last] = sum(v.bytes for v in self.values if v.source == last)
        layers = tuple(
            replace(layer, output_bytes=size, saves_output=True)
            for layer, size in zip(self.layers, outputs, strict=True)
        )
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "skips", tuple(skips))

    @classmethod
    def uniform(
        cls,
        stages: int,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        *,
        output_bytes: float = 0.0,
        parameter_bytes: float = 0.0,
    ) -> "Profile":
        """Return equal layers, for studies by hand; a layer's output is saved.

        Args:
            stages: how many layers.
            forward_s, backward_s: seconds of each.
            output_bytes: of each one's output, and of the input.
            parameter_bytes: of each.
        """
        layer = LayerProfile(
            "layer", forward_s, backward_s, output_bytes, parameter_bytes, output_bytes, True
        )
        layers = tuple(replace(layer, name=f"layer {i}") for i in range(stages))
        return cls(layers, input_bytes=output_bytes, provenance={"label": "exact"})

    @classmethod
    def analytic(
        cls,
        model: "nn.Sequential",
        sample: "Tree",
        device: "Device",
        *,
        dtype: str | None = None,
        efficiency: float = 0.5,
        memory_efficiency: float = 0.75,
    ) -> "Profile":
        """Reckon the costs on a named device: see :func:`pipekit.profiling.analytic.analytic`."""
        from pipekit.profiling.analytic import analytic  # here, since torch takes seconds

        return analytic(
            model,
            sample,
            device,
            dtype=dtype,
            efficiency=efficiency,
            memory_efficiency=memory_efficiency,
        )

    @classmethod
    def from_pipedream_graph(cls, path: str | os.PathLike[str], rows: int = 1) -> "Profile":
        """Read PipeDream's ``graph.txt``: see :func:`pipekit.profiling.graph_txt.read`."""
        from pipekit.profiling import graph_txt  # here, since it imports this module

        return graph_txt.read(path, rows)

    def in_order(self, order: Sequence[int]) -> "Profile":
        """Return the layers of a graph in another order in which they can run.

        Args:
            order: the number that each layer has here; empty: as it is.

        Raises:
            ValueError: it is no order of these layers, or one of them would come before what it
                reads.
        """
        if not order:
            return self
        place = {layer: number for number, layer in enumerate(order)}
        if len(order) != len(self) or set(place) != set(range(len(self))):
            raise ValueError(f"an order of {len(self)} layers names each of them once")
        if not self.values and list(order) != sorted(order):
            raise ValueError("the profile is a chain, whose layers have one order only")
        values = tuple(
            replace(
                value,
                source=None if value.source is None else place[value.source],
                users=tuple(place[user] for user in value.users),
            )
            for value in self.values
        )
        return replace(self, layers=tuple(self.layers[layer] for layer in order), values=values)

    def to_pipedream_graph(self, path: str | os.PathLike[str]) -> None:
        """Write PipeDream's ``graph.txt``: see :func:`pipekit.profiling.graph_txt.write`."""
        from pipekit.profiling import graph_txt

        graph_txt.write(self, path)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def forward_s(self) -> float:
        """Seconds of the whole model's forward."""
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Seconds of the whole model's backward."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of all trained parameters."""
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def split_label(self) -> str:
        """Where the seconds of the backward's two parts come from: "assumed", or as the profile."""
        if any(layer.backward_input_s is None for layer in self.layers):
            return "assumed"
        return str(self.provenance.get("label", ""))

    def stage(self, first: int, stop: int) -> LayerProfile:
        """Return the layers from ``first`` to the one before ``stop`` as one.

        Raises:
            ValueError: there are no such layers.
        """
        if not 0 <= first < stop <= len(self):
            raise ValueError(f"there are no layers {first} to {stop - 1} in a chain of {len(self)}")
        layers = self.layers[first:stop]
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

    def boundary_bytes(self, first: int) -> float:
        """Return the bytes that enter layer ``first``: the model's input, or an output.

        Skips are not among them.
        """
        return self.layers[first - 1].output_bytes if first else self.input_bytes

    def scaled(self, rows: int) -> "Profile":
        """Return the costs of a microbatch of ``rows`` rows, taken to be proportional to the rows.

        Parameters, buffers and updates stay as they are.
        """
        part = rows / self.rows
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * part,
                backward_s=layer.backward_s * part,
                output_bytes=layer.output_bytes * part,
                saved_bytes=layer.saved_bytes * part,
                flops=layer.flops * part,
                backward_input_s=_times(layer.backward_input_s, part),
                backward_weight_s=_times(layer.backward_weight_s, part),
                input_only_bytes=layer.input_only_bytes * part,
            )
            for layer in self.layers
        )
        skips = tuple(replace(skip, bytes=skip.bytes * part) for skip in self.skips)
        values = tuple(replace(value, bytes=value.bytes * part) for value in self.values)
        input_bytes = self.input_bytes * part
        return replace(
            self, layers=layers, rows=rows, input_bytes=input_bytes, skips=skips, values=values
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row a layer, with the columns of :class:`LayerProfile`."""
        return pd.DataFrame([asdict(layer) for layer in self.layers])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, making the folder if it is missing."""
        record = {
            "format": _FORMAT,
            "rows": self.rows,
            "input_bytes": self.input_bytes,
            "provenance": dict(self.provenance),
            "layers": [asdict(layer) for layer in self.layers],
            "skips": [asdict(skip) for skip in self.skips],
        }
        if self.values:
            record |= {"skips": [], "values": [asdict(value) for value in self.values]}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        """Read back what :meth:`save` wrote; a file without skips or values has none.

        Raises:
            ValueError: the file is not a profile; the message says where it is not.
            OSError: there is no such file, or it cannot be opened.
        """
        return read_json(path, cls, "a profile", _FORMAT, ["rows", "input_bytes", "provenance"])


def _sum_of(layers: Sequence[LayerProfile], op: Op) -> float:
    return sum(layer.seconds(op) for layer in layers)


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor
