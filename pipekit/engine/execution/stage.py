"""A stage in training: its passes, and the weight versions that they read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.engine.execution.passes import PassConfig, Passes
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.engine.options import Updates
from pipekit.engine.updates.loss_scaler import LossScaler
from pipekit.engine.updates.mitigated_weights import MitigatedWeights, StageMitigation
from pipekit.engine.updates.optimizer_state import NamedOptimizer, OrderedGroups, OwnGenerators
from pipekit.engine.updates.weight_versions import OptimizerFactory, WeightVersions
from pipekit.partition.partition import PartitionStage
from pipekit.schedules import Op, Step
from pipekit.schedules.lowering.recurring import Recurring

Edit = Callable[[Optimizer, LRScheduler | None], object]
"""Changes an optimizer, and its learning-rate scheduler if it has one."""


class StageSource(Protocol):
    """A stage of the model between two runs, here or on the worker that trained it."""

    @property
    def config(self) -> "StageConfig":
        """Its config, as it stands."""

    @property
    def known(self) -> "StageConfig":
        """Its config, as it was last read."""


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """The config of a stage in training; it can be sent to another process."""

    passes: PassConfig  # whose layers have the newest weights
    optimizer: OptimizerFactory
    updates: Updates = Updates()
    groups: OrderedGroups | None = None  # of the whole model's parameters
    state: dict[str, Any] | None = None  # of optimizer, scheduler, loss scaler, of an earlier run
    mitigation: StageMitigation | None = None

    @property
    def module(self) -> nn.Sequential:
        """Its layers under their names in the unsplit model, with the newest weights."""
        return self.passes.part.module

    @property
    def config(self) -> Self:
        return self

    @property
    def known(self) -> Self:
        return self

    def build(self, device: torch.device) -> "Stage":
        kind: Callable[..., WeightVersions] = WeightVersions
        if self.mitigation:
            kind = partial(MitigatedWeights, self.mitigation)
        weights = kind(
            self.module.to(device),
            self.optimizer,
            self.updates.lr_scheduler,
            self.groups,
            self.updates.lr_step == "update",
            self.passes.part.copies.values(),
        )
        passes = Passes(self.passes, weights.modules, device, weights.parameters)
        return Stage(self, weights, passes)

    def with_part(self, part: PartitionStage) -> Self:
        return replace(self, passes=replace(self.passes, part=part))

    def trained(self, module: nn.Sequential, state: dict[str, Any] | None) -> "StageConfig":
        """Return the config of the stage after a run."""
        return replace(self.with_part(replace(self.passes.part, module=module)), state=state)

    def edited(self, function: Edit) -> "StageConfig":
        """Return the config of the stage after a function has changed its optimizer."""
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        stage = self.build(device)
        if stage.weights.optimizer is None:
            return self
        function(stage.weights.optimizer, stage.weights.lr_scheduler)
        return stage.config


class Stage:
    """Runs the passes of one stage on the weight version that each names.

    It is a :class:`StageRuntime`, and between two runs of one process a :class:`StageSource`.
    """

    def __init__(self, config: StageConfig, weights: WeightVersions, passes: Passes) -> None:
        self._config, self.weights, self.passes = config, weights, passes
        self.scaler = LossScaler(config.updates.scale) if config.updates.scale else None
        self.recompute = passes.recompute
        self.numbers = config.passes.part.numbers  # of its trained parameters in the unsplit model
        if config.state is not None:
            self._load(config.state)

    def prepare(
        self, slots: int, loss_versions: Recurring[int] | None = None, first_microbatch: int = 0
    ) -> None:
        """Get ready for a run that needs ``slots`` weight slots, behind so many microbatches."""
        self.passes.begin(first_microbatch)
        self.weights.prepare(slots)
        if self.scaler and loss_versions is not None:
            self.scaler.begin(loss_versions)

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        return self.passes.forward(self.weights.read(step, Op.FORWARD), x, target)

    def run_again(self, step: Step) -> StageIO:
        return self.passes.run_again(self.weights.read(step, Op.FORWARD))

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        step = self.weights.read(step, Op.BACKWARD)
        if step.task.op.adds_gradient:
            self.weights.accumulate(step.slot, step.update)
        if self.scaler and gradients is None:
            loss = self.passes.loss(step.task.microbatch)
            # By way of float64: a scale beyond what the loss's dtype can hold becomes infinite.
            scale = torch.full_like(loss, self.scaler.scale(step.update), dtype=torch.float64)
            gradients = StageGradients({0: scale.to(loss.dtype)}, {})
        return self.passes.backward(step, gradients)

    def backward_weight(self, step: Step) -> None:
        step = self.weights.read(step, Op.BACKWARD_WEIGHT)
        self.weights.accumulate(step.slot, step.update)
        self.passes.backward_weight(step)

    def state(self) -> dict[str, Any]:
        """Return the state of the optimizer (by parameter), the scheduler and the loss scaler."""
        return {
            name: part.state_dict() if part else None for name, part in self._stateful().items()
        }

    @property
    def config(self) -> StageConfig:
        """The config that makes this stage again, as it stands now."""
        return self._config.trained(self.weights.newest, self.state())

    @property
    def known(self) -> StageConfig:
        """The same without the optimizer's state, of which a failed run may have left anything."""
        return self._config.trained(self.weights.newest, None)

    def _load(self, state: dict[str, Any]) -> None:
        there = (state.get("mitigation") or {}).get("rule")
        here = repr(self._config.mitigation.rule) if self._config.mitigation else None
        if there != here:
            raise ValueError(
                f"the saved training had mitigation {there}, and this one has {here}: build the "
                f"pipeline as the one that wrote the checkpoint"
            )
        for name, part in self._stateful().items():
            if part and state.get(name):
                if isinstance(part, NamedOptimizer) and "resumed" in state:
                    part.warn_of_changes(state[name])
                part.load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        weights = self.weights
        parts: dict[str, Any] = {
            "optimizer": weights.optimizer and NamedOptimizer(weights.optimizer, weights.names),
            "generators": weights.optimizer and OwnGenerators(weights.optimizer),
            "lr_scheduler": weights.lr_scheduler,
            "loss_scaler": self.scaler,
        }
        if isinstance(weights, MitigatedWeights):
            parts["mitigation"] = weights
        return parts
