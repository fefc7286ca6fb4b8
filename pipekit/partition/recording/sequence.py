"""A recorded model as the sequence of layers that pipelines, profiles and planners take."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
from torch import nn

from pipekit.partition.recording.program import RecordedStep
from pipekit.partition.recording.recorded_model import Passed, RecordedModel
from pipekit.partition.recording.stage import RecordedStage, span
from pipekit.units import bytes_text


@dataclass(frozen=True)
class LayersSummary:
    """What is known of a model's layers; it holds no tensors.

    Attributes:
        table: one row a layer: modules, parameters, bytes, milliseconds of one forward in training
            when the layers were verified, what crosses behind it.
        remarks: what holds for the layers together, a line each.
        modules: names of those that each layer calls.
        verified: sizes of the batch with which the layers were compared with the unsplit model.
    """

    table: pd.DataFrame
    remarks: tuple[str, ...]
    modules: tuple[tuple[str, ...], ...]
    verified: str

    @classmethod
    def of(cls, recorded: RecordedModel, layers: list[RecordedStage], seconds: list[float]) -> Self:
        """Return what is known of the layers of a recorded model, whose forwards took so long."""
        steps = [recorded.steps(number) for number in range(len(layers))]
        modules = tuple(_modules(each) for each in steps)
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
            *(f"tied: {' = '.join(names)}" for names in recorded.ties),
            *(f"held to be as in the example: {read}" for read in recorded.frozen),
        )
        return cls(pd.DataFrame(table), remarks, modules, recorded.trial.sizes)

    def __str__(self) -> str:
        return "\n".join([self.table.to_string(max_colwidth=60), *self.remarks])


@dataclass(frozen=True)
class Origin:
    """What layers were made from; a copy has none, since its tensors are not the model's."""

    recorded: RecordedModel

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in another process, too."""
        return type(None), ()


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
    origin: Origin | None = None

    @classmethod
    def of(cls, recorded: RecordedModel, seconds: list[float]) -> Self:
        """Return the layers of a recorded model, whose forwards took so long."""
        layers = recorded.stages([1] * len(recorded))
        sequence = cls(*layers)
        sequence.passed = recorded.passed_values()
        sequence.origin = Origin(recorded)
        sequence.summary = LayersSummary.of(recorded, layers, seconds)
        return sequence

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
        """Load tensors by their names in the unsplit model.

        Args:
            state_dict: as ``state_dict()`` of these layers or of the unsplit model gave it.
            strict, assign: as :meth:`torch.nn.Module.load_state_dict` has them.

        Raises:
            ValueError: with ``strict``, a name is missing, or is none of the model's.
        """
        names = set(self.state_dict())
        if strict and names != set(state_dict):
            wrong = sorted(names ^ set(state_dict))
            raise ValueError(f"the model and the state differ in names, first in {wrong[0]!r}")
        for layer in self:
            own = {name: state_dict[name] for name in layer.state_dict() if name in state_dict}
            layer.load_state_dict(own, strict=strict, assign=assign)


def _modules(steps: Iterable[RecordedStep]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.module for step in steps if step.module is not None))


def _crosses(recorded: RecordedModel, layer: int) -> str:
    """Return what goes from the layers before one to it and later ones."""
    crossing = recorded.crossing(layer) if layer < len(recorded) else []
    if not crossing:
        return ""
    size = sum(each.nbytes for each in crossing)
    return f"{bytes_text(size)}: {', '.join(each.source for each in crossing)}"
