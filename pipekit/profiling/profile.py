"""What each layer of a model costs: seconds, bytes and operations."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipekit.profiling import graph_txt
from pipekit.profiling.layer_profile import (
    LayerProfile,
    SkipProfile,
    TieProfile,
    combined,
)
from pipekit.reading import read_json
from pipekit.schedules import Op
from pipekit.units import plural, require_amount

if TYPE_CHECKING:
    from torch import nn

    from pipekit.clusters import Device
    from pipekit.trees import Tree

_FORMAT = "pipekit profile 1"
_MOST_ROWS = 10**9
_BY_ROWS = (
    *("forward_s", "backward_s", "backward_input_s", "backward_weight_s"),
    *("output_bytes", "saved_bytes", "input_only_bytes", "flops"),
)


@dataclass(frozen=True)
class Profile:
    """The costs of a chain of layers for a microbatch of ``rows`` rows.

    Attributes:
        layers: in the order in which they run.
        rows: rows of the microbatch that all numbers are for.
        input_bytes: bytes of the model's input.
        provenance: where the numbers come from; see :func:`pipekit.host.provenance.provenance`.
        skips: what goes from a layer to one far behind it, beside the chain.
        ties: weights that several layers share.

    Raises:
        ValueError: there is no layer or row, a skip or tie has layers that are not there or not in
            order, or ``input_bytes`` is negative or not finite.
    """

    layers: tuple[LayerProfile, ...]
    rows: int = 1
    input_bytes: float = 0.0
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    skips: tuple[SkipProfile, ...] = ()
    ties: tuple[TieProfile, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "skips", "ties"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.layers:
            raise ValueError("a profile needs at least one layer")
        if not 1 <= self.rows <= _MOST_ROWS:
            raise ValueError(f"a profile is of 1 to {_MOST_ROWS:,} rows, not {self.rows}")
        require_amount("the input: bytes", self.input_bytes)
        for skip in self.skips:
            if not 0 <= skip.source < skip.destination < len(self):
                raise ValueError(
                    f"skip {skip.name!r} cannot go from layer {skip.source} to layer "
                    f"{skip.destination} in a chain of {len(self)}"
                )
        for tie in self.ties:
            if not 0 <= tie.layers[0] <= tie.layers[-1] < len(self):
                raise ValueError(
                    f"weights cannot be shared by layers {list(tie.layers)} of {len(self)}"
                )

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
        """Return ``stages`` equal layers of ``forward_s``, ``backward_s`` and ``parameter_bytes``.

        Each output, which is saved, and the input are of ``output_bytes``.
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
        """Estimate costs on a named device: see :func:`pipekit.profiling.analytic.analytic`."""
        from pipekit.profiling.analytic import analytic  # here, since torch takes seconds

        how: Any = {"efficiency": efficiency, "memory_efficiency": memory_efficiency}
        return cls(**analytic(model, sample, device, dtype=dtype, **how))

    @classmethod
    def from_pipedream_graph(cls, path: str | os.PathLike[str], rows: int = 1) -> "Profile":
        """Read PipeDream's ``graph.txt``: see :func:`pipekit.profiling.graph_txt.read`."""
        return cls(**graph_txt.read(path, rows))

    def __repr__(self) -> str:
        origin = self.provenance.get("label", "of unknown origin")
        return f"<Profile: {plural(len(self), 'layer')}, {plural(self.rows, 'row')} ({origin})>"

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

    def stage(self, first: int, stop: int) -> LayerProfile:
        """Return the layers from ``first`` to the one before ``stop`` as one.

        Raises:
            ValueError: there are no such layers.
        """
        if not 0 <= first < stop <= len(self):
            raise ValueError(f"there are no layers {first} to {stop - 1} in a chain of {len(self)}")
        return combined(self.layers[first:stop])

    def boundary_bytes(self, first: int) -> float:
        """Return the bytes that enter layer ``first``, without skips: the input, or an output."""
        return self.layers[first - 1].output_bytes if first else self.input_bytes

    def scaled(self, rows: int, chunks: int = 1) -> "Profile":
        """Return the costs of a microbatch of ``rows`` rows, proportional but for parameters'.

        With ``chunks`` they are those of one of so many equal chunks of its sequences.
        """
        part = rows / self.rows / chunks

        def scaled(layer: LayerProfile) -> LayerProfile:
            costs: dict[str, Any] = {name: getattr(layer, name) for name in _BY_ROWS}
            return replace(layer, **{name: n * part for name, n in costs.items() if n is not None})

        layers = tuple(map(scaled, self.layers))
        skips = tuple(replace(skip, bytes=skip.bytes * part) for skip in self.skips)
        return replace(
            self, layers=layers, rows=rows, input_bytes=self.input_bytes * part, skips=skips
        )

    def recomputing(self, layers: Iterable[int]) -> "Profile":
        """Return the costs if some layers keep no more than their input, and run forward again.

        Each is a checkpoint of its own (Chen et al., arXiv 1604.06174), say by
        ``torch.utils.checkpoint``.  What it makes for the moment of its backward is not counted.

        Raises:
            ValueError: there is no such layer.
        """
        changed = list(self.layers)
        for number in sorted(set(layers)):
            if not 0 <= number < len(self):
                raise ValueError(
                    f"there is no layer {number}: name those from 0 to {len(self) - 1}"
                )
            layer, before = changed[number], changed[number - 1] if number else None
            kept = min(layer.saved_bytes, layer.output_bytes) if layer.saves_output else 0.0
            changed[number] = replace(
                layer,
                backward_s=layer.backward_s + layer.forward_s,
                backward_input_s=layer.seconds(Op.BACKWARD_INPUT) + layer.forward_s,
                backward_weight_s=layer.seconds(Op.BACKWARD_WEIGHT),
                saved_bytes=kept,
                input_only_bytes=min(kept, layer.input_only_bytes),
            )
            if before and not before.saves_output:
                saved = before.saved_bytes + before.output_bytes
                changed[number - 1] = replace(before, saved_bytes=saved, saves_output=True)
        return replace(self, layers=tuple(changed))

    def to_frame(self) -> pd.DataFrame:
        """Return one row a layer, with the columns of :class:`LayerProfile`."""
        return pd.DataFrame([asdict(layer) for layer in self.layers])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON, making the folder if it is missing."""
        record = {"format": _FORMAT, **asdict(self), "provenance": dict(self.provenance)}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, indent=1, allow_nan=False, default=np.generic.item)
        Path(path).write_text(text + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        """Read back what :meth:`save` wrote; a ValueError says where the file is not a profile."""
        return read_json(path, cls, "a profile", _FORMAT, ["rows", "input_bytes", "provenance"])
