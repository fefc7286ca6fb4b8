"""A stage in training: its layers, their weight versions, and the passes that are pending."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pipekit.engine.optimizer_state import by_name, load_by_name
from pipekit.engine.passes import FlowGradients, Passes, Section
from pipekit.engine.reducer import Reducer
from pipekit.engine.versions import LRSchedulerFactory, OptimizerFactory, WeightVersions
from pipekit.plans import Recompute


@dataclass(kw_only=True)
class StageSpec(Section):
    """What a stage is made of; it can be sent to another process.

    Attributes:
        layers: its layers under their names in the unsplit model, with the newest weights.
        optimizer: makes its optimizer.
        lr_scheduler: makes its learning-rate scheduler, or None.
        recompute: which microbatches of a batch are recomputed.
        first_parameter: index of its first trained parameter in the unsplit model.
        state: of its optimizer and scheduler, from an earlier run, or None.
    """

    layers: nn.Sequential
    optimizer: OptimizerFactory
    lr_scheduler: LRSchedulerFactory | None
    recompute: Recompute = "never"
    first_parameter: int = 0
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
        if spec.state is not None:
            self._load(spec.state)
        self.reducer: Reducer | None = None  # on several workers, in training

    def prepare(self, buffers: int, training: bool) -> None:
        """Make ready for a run that needs ``buffers`` weight buffers."""
        self.versions.prepare(buffers, training)

    def backward(
        self, microbatch: int, buffer: int, update: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        """Add the microbatch's gradients to ``update``'s sum; see :meth:`Passes.backward`."""
        self.versions.accumulate(buffer, update)
        return super().backward(microbatch, buffer, update, gradients)

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state by the names of the parameters, and the scheduler's."""
        optimizer, scheduler = self.versions.optimizer, self.versions.lr_scheduler
        return {
            "optimizer": by_name(optimizer, self.versions.names) if optimizer else None,
            "lr_scheduler": scheduler.state_dict() if scheduler else None,
        }

    def to_spec(self) -> StageSpec:
        """Return what makes this stage again, as it stands now, elsewhere."""
        return replace(self.spec, layers=self.versions.newest, state=self.state())

    def _load(self, state: dict[str, Any]) -> None:
        if self.versions.optimizer and state["optimizer"]:
            load_by_name(self.versions.optimizer, self.versions.names, state["optimizer"])
        if self.versions.lr_scheduler and state["lr_scheduler"]:
            self.versions.lr_scheduler.load_state_dict(state["lr_scheduler"])
