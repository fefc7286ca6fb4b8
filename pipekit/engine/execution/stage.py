"""A stage in training: its layers, their weight versions, and the passes that are pending."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pipekit.engine.execution.passes import FlowGradients, Passes, Section
from pipekit.engine.updates.loss_scaler import LossScaler
from pipekit.engine.updates.optimizer_state import NamedOptimizer
from pipekit.engine.updates.reducer import Reducer
from pipekit.engine.updates.weight_versions import (
    LRSchedulerFactory,
    OptimizerFactory,
    WeightVersions,
)
from pipekit.loss_scale import LossScale
from pipekit.plans import Recompute


@dataclass(kw_only=True)
class StageSpec(Section):
    """What a stage is made of; it can be sent to another process.

    Attributes:
        layers: its layers under their names in the unsplit model, with the newest weights.
        optimizer: makes its optimizer.
        lr_scheduler: makes its learning-rate scheduler, or None.
        recompute: which microbatches of a batch are recomputed.
        numbers: of its trained parameters in the unsplit model; None for the copy of an earlier
            stage's.
        loss_scale: how the scale of the losses changes, or None.
        state: of its optimizer, scheduler and loss scaler, from an earlier run, or None.
    """

    layers: nn.Sequential
    optimizer: OptimizerFactory
    lr_scheduler: LRSchedulerFactory | None
    recompute: Recompute = "never"
    numbers: Sequence[int | None] = ()
    loss_scale: LossScale | None = None
    state: dict[str, Any] | None = None

    def build(self, device: torch.device) -> "Stage":
        """Return the stage, on its device."""
        return Stage(self, device)


class Stage(Passes):
    """Runs the passes of one stage on the weight version that each names.

    Args:
        spec: what it is made of.
        device: where it computes.
    """

    def __init__(self, spec: StageSpec, device: torch.device) -> None:
        self.spec = spec
        self.versions = WeightVersions(spec.layers.to(device), spec.optimizer, spec.lr_scheduler)
        super().__init__(spec, self.versions.modules, device)
        self.scaler = LossScaler(spec.loss_scale) if spec.loss_scale else None
        if spec.state is not None:
            self._load(spec.state)
        self.reducer: Reducer | None = None  # on several workers, in training

    def prepare(self, buffers: int, training: bool, loss_versions: Sequence[int] = ()) -> None:
        """Make ready for a run that needs ``buffers`` weight buffers.

        ``loss_versions`` are those of :meth:`LossScaler.begin`.
        """
        self.versions.prepare(buffers, training)
        if self.scaler:
            self.scaler.begin(loss_versions)

    def backward(
        self, microbatch: int, buffer: int, update: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        """Add the microbatch's gradients to ``update``'s sum; see :meth:`Passes.backward`."""
        self.versions.accumulate(buffer, update)
        if self.scaler and gradients is None:
            loss = self.output(microbatch).main
            # By way of float64: a scale beyond what the loss's dtype can hold becomes infinite.
            scale = torch.full_like(loss, self.scaler.scale(update), dtype=torch.float64)
            gradients = FlowGradients({0: scale.to(loss.dtype)}, {})
        return super().backward(microbatch, buffer, update, gradients)

    def state(self) -> dict[str, Any]:
        """Return the state of the optimizer (by parameter), the scheduler and the loss scaler."""
        return {
            name: part.state_dict() if part else None for name, part in self._stateful().items()
        }

    def to_spec(self) -> StageSpec:
        """Return what makes this stage again, as it stands now, elsewhere."""
        return replace(self.spec, layers=self.versions.newest, state=self.state())

    def _load(self, state: dict[str, Any]) -> None:
        for name, part in self._stateful().items():
            if part and state[name]:
                part.load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        versions = self.versions
        optimizer = versions.optimizer and NamedOptimizer(versions.optimizer, versions.names)
        return {
            "optimizer": optimizer,
            "lr_scheduler": versions.lr_scheduler,
            "loss_scaler": self.scaler,
        }
