"""A recorded model as the sequence of layers that pipelines, profiles and planners take."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import pandas as pd
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from pipekit.partition.recording.recorded_model import RecordedModel
from pipekit.partition.recording.stage import RecordedStage, span
from pipekit.partition.recording.unify import ROWS
from pipekit.units import bytes_text

_TRACED = (
    "recorded as under tracing: masks are applied where they hide nothing, too, by kernels that "
    "may round otherwise than the model's without a mask",
)


class RecordedSequence(nn.Sequential):
    """The layers of a recorded model, in order: any consecutive ones make a stage.

    ``state_dict()`` has the unsplit model's names.  ``print`` shows the layers as a table.
    """

    table: pd.DataFrame | None = None  # a row a layer; None of a part of a sequence
    remarks: tuple[str, ...] = ()  # what else is known of the layers together
    origin: RecordedModel | None = None  # None of a part or a copy

    @classmethod
    def of(cls, recorded: RecordedModel) -> Self:
        """Return the layers of a recorded model."""
        layers, rows = recorded.stages(), recorded.programs[0].sizes[ROWS]
        sequence = cls(*layers)
        sequence.origin = recorded
        sequence.table = _table(recorded, layers)
        sequence.remarks = (
            f"{len(layers)} layers; bytes that cross are those of {rows} rows; outputs, "
            f"buffers and all gradients equal the unsplit model's, with {recorded.trial.sizes}",
            *_TRACED * recorded.traced,
            *(f"held to be as in the example: {read}" for read in recorded.frozen),
        )
        return sequence

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recorded model, whose tensors a copy does not have."""
        return self.__dict__ | {"origin": None}

    def __repr__(self) -> str:
        if self.table is None:
            return super().__repr__()
        return "\n".join([self.table.to_string(max_colwidth=60), *self.remarks])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load tensors by the unsplit model's names; ValueError of a wrong one with ``strict``."""
        names = self.state_dict().keys()
        if strict and names != state_dict.keys():
            wrong = sorted(names ^ state_dict.keys())
            raise ValueError(f"the model and the state differ in names, first in {wrong[0]!r}")
        for layer in self:
            own = {name: state_dict[name] for name in layer.state_dict() if name in state_dict}
            layer.load_state_dict(own, strict=strict, assign=assign)
        return _IncompatibleKeys(
            sorted(names - state_dict.keys()), sorted(state_dict.keys() - names)
        )


def _table(recorded: RecordedModel, layers: Iterable[RecordedStage]) -> pd.DataFrame:
    rows = []
    for number, layer in enumerate(layers):
        steps = recorded.steps(number)
        crossing = recorded.crossing(number + 1) if number + 1 < len(recorded) else []
        size = bytes_text(sum(each.nbytes for each in crossing))
        row = {
            "modules": span(layer),
            "operations": sum(step.operation is not None for step in steps),
            "parameters": sum(p.numel() for p in layer.parameters()),
            "MB": round(sum(p.nbytes for p in layer.parameters()) / 1e6, 3),
            "random": "yes" if any(step.random for step in steps) else "",
            "buffers": len(list(layer.buffers())) or "",
            "crosses behind": f"{size}: {', '.join(each.source for each in crossing)}",
        }
        rows.append(row if crossing else row | {"crosses behind": ""})
    return pd.DataFrame(rows)
