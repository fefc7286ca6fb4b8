"""A recorded model as the sequence of layers that pipelines, profiles and planners take."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
from torch import nn

from pipekit.partition.recording.recorded_model import Passed, RecordedModel
from pipekit.partition.recording.stage import RecordedStage, called, span
from pipekit.units import bytes_text

_TRACED = (
    "recorded as under tracing: masks are applied where they hide nothing, too, by kernels that "
    "may round otherwise than the model's without a mask",
)


@dataclass(frozen=True)
class LayersSummary:
    """What is known of a model's layers; it holds no tensors."""

    table: pd.DataFrame  # a row a layer; milliseconds of one forward in training when verified
    remarks: tuple[str, ...]
    modules: tuple[tuple[str, ...], ...]  # names of those that each layer calls
    verified: str  # sizes of the batch with which layers and unsplit model were compared

    @classmethod
    def of(cls, recorded: RecordedModel, layers: list[RecordedStage], seconds: list[float]) -> Self:
        """Return what is known of the layers of a recorded model, whose forwards took so long."""
        steps = [recorded.steps(number) for number in range(len(layers))]
        modules = tuple(called(layer) for layer in layers)
        sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
        buffers = [sum(1 for _ in layer.buffers()) for layer in layers]
        table = {
            "modules": [span(names) for names in modules],
            "operations": [sum(s.operation is not None for s in each) for each in steps],
            "parameters": [sum(p.numel() for p in layer.parameters()) for layer in layers],
            "MB": [round(size / 1e6, 3) for size in sizes],
            "ms (measured)": [round(each * 1e3, 2) for each in seconds],
            "random": ["yes" if any(s.random for s in each) else "" for each in steps],
            "buffers": [count or "" for count in buffers],
            "crosses behind": [_crosses(recorded, layer + 1) for layer in range(len(layers))],
        }
        remarks = (
            f"{len(layers)} layers; bytes that cross are those of {recorded.rows} rows; outputs, "
            f"buffers and all gradients equal the unsplit model's, with {recorded.trial.sizes}",
            *_TRACED * recorded.traced,
            *(f"tied: {' = '.join(names)}" for names in recorded.ties),
            *(f"held to be as in the example: {read}" for read in recorded.frozen),
        )
        return cls(pd.DataFrame(table), remarks, modules, recorded.trial.sizes)

    def __str__(self) -> str:
        return "\n".join([self.table.to_string(max_colwidth=60), *self.remarks])


class RecordedSequence(nn.Sequential):
    """The layers of a recorded model, in order: any consecutive ones make a stage.

    ``state_dict()`` has the unsplit model's names.  ``print`` shows the layers as a table.

    Attributes:
        summary: what is known of the layers; None of a part of a sequence.
        passed: the values that they hand to one another.
        origin: what they were made from; None of a part or a copy.
    """

    summary: LayersSummary | None = None
    passed: tuple[Passed, ...] = ()
    origin: RecordedModel | None = None

    @classmethod
    def of(cls, recorded: RecordedModel, seconds: list[float]) -> Self:
        """Return the layers of a recorded model, whose forwards took so long."""
        layers = recorded.stages()
        sequence = cls(*layers)
        sequence.passed = recorded.passed_values()
        sequence.origin = recorded
        sequence.summary = LayersSummary.of(recorded, layers, seconds)
        return sequence

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recorded model, whose tensors a copy does not have."""
        return self.__dict__ | {"origin": None}

    def __repr__(self) -> str:
        return str(self.summary) if self.summary else super().__repr__()

    def _repr_html_(self) -> str | None:
        """Return the table for a notebook."""
        if self.summary is None:
            return None
        remarks = "".join(f"<p>{html.escape(line)}</p>" for line in self.summary.remarks)
        return f"{self.summary.table.to_html()}{remarks}"

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load tensors by their names in the unsplit model, as torch's modules do.

        Raises ValueError if with ``strict`` a name is missing, or is none of the model's.
        """
        names = set(self.state_dict())
        if strict and names != set(state_dict):
            wrong = sorted(names ^ set(state_dict))
            raise ValueError(f"the model and the state differ in names, first in {wrong[0]!r}")
        for layer in self:
            own = {name: state_dict[name] for name in layer.state_dict() if name in state_dict}
            layer.load_state_dict(own, strict=strict, assign=assign)


def _crosses(recorded: RecordedModel, layer: int) -> str:
    """Return what goes from the layers before one to it and later ones."""
    crossing = recorded.crossing(layer) if layer < len(recorded) else []
    if not crossing:
        return ""
    size = sum(each.nbytes for each in crossing)
    return f"{bytes_text(size)}: {', '.join(each.source for each in crossing)}"
