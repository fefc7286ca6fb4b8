"""A recorded model as the sequence of layers that pipelines, profiles and planners take."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
from torch import nn

from pipekit.partition.recording.recorded_model import Crossing, Passed, RecordedModel
from pipekit.partition.recording.stage import RecordedStage, span
from pipekit.units import bytes_text


@dataclass(frozen=True)
class LayerSummary:
    """What a table says of one layer.

    Attributes:
        modules: the modules that it calls, by name.
        operations: how many recorded operations run beside these.
        parameters: numbers in its parameters.
        nbytes: of these.
        seconds: of one forward in training, measured when the layers were verified.
        random: whether it draws random numbers in training.
        buffers: how many tensors it keeps that are no parameters.
        crossing: what it hands to the next layer, for itself and for later ones.
    """

    modules: tuple[str, ...]
    operations: int
    parameters: int
    nbytes: int
    seconds: float
    random: bool
    buffers: int
    crossing: tuple[Crossing, ...]


@dataclass(frozen=True)
class Summary:
    """What is known of a model's layers; it holds no tensors.

    Attributes:
        layers: one entry each.
        rows: of the example, to which bytes and shapes belong.
        verified: sizes of the batch with which the layers were compared with the unsplit model.
        ties: the names of each parameter that has several.
        frozen: what Python read from tensors, which is held to be as in the example.
    """

    layers: tuple[LayerSummary, ...]
    rows: int
    verified: str
    ties: tuple[tuple[str, ...], ...]
    frozen: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """One row a layer: modules, parameters, bytes, milliseconds, what crosses behind it."""
        return pd.DataFrame(
            {
                "modules": [span(layer.modules) for layer in self.layers],
                "operations": [layer.operations for layer in self.layers],
                "parameters": [layer.parameters for layer in self.layers],
                "MB": [round(layer.nbytes / 1e6, 3) for layer in self.layers],
                "ms (measured)": [round(layer.seconds * 1e3, 2) for layer in self.layers],
                "random": ["yes" if layer.random else "" for layer in self.layers],
                "buffers": [layer.buffers or "" for layer in self.layers],
                "crosses behind": [_crosses(layer.crossing) for layer in self.layers],
            }
        )

    @property
    def remarks(self) -> list[str]:
        """What holds for the layers together, a line each."""
        return [
            f"{len(self.layers)} layers; bytes that cross are those of {self.rows} rows; outputs, "
            f"buffers and all gradients equal the unsplit model's, with {self.verified}",
            *(f"tied: {' = '.join(names)}" for names in self.ties),
            *(f"held to be as in the example: {read}" for read in self.frozen),
        ]

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

    summary: Summary | None = None
    passed: tuple[Passed, ...] = ()
    origin: Origin | None = None

    @classmethod
    def of(cls, recorded: RecordedModel, seconds: list[float]) -> Self:
        """Return the layers of a recorded model, whose forwards took so long."""
        layers = recorded.stages([1] * len(recorded))
        sequence = cls(*layers)
        sequence.passed = recorded.passed_values()
        sequence.origin = Origin(recorded)
        sequence.summary = Summary(
            layers=tuple(
                _summary(recorded, number, layer, seconds[number])
                for number, layer in enumerate(layers)
            ),
            rows=recorded.rows,
            verified=recorded.trial.sizes,
            ties=tuple(map(tuple, recorded.ties)),
            frozen=recorded.frozen,
        )
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


def _summary(
    recorded: RecordedModel, number: int, layer: RecordedStage, seconds: float
) -> LayerSummary:
    steps = recorded.steps(number)
    last = number == len(recorded) - 1
    return LayerSummary(
        modules=tuple(dict.fromkeys(s.module for s in steps if s.module is not None)),
        operations=sum(step.operation is not None for step in steps),
        parameters=sum(p.numel() for p in layer.parameters()),
        nbytes=sum(p.nbytes for p in layer.parameters()),
        seconds=seconds,
        random=any(step.random for step in steps),
        buffers=sum(1 for _ in layer.buffers()),
        crossing=() if last else tuple(recorded.crossing(number + 1)),
    )


def _crosses(crossing: tuple[Crossing, ...]) -> str:
    if not crossing:
        return ""
    size = sum(each.nbytes for each in crossing)
    return f"{bytes_text(size)}: {', '.join(each.source for each in crossing)}"
