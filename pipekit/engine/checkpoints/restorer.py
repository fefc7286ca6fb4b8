"""Puts a worker's stages back to where they were at a checkpoint, while the table is gone through.

Whatever had been computed for microbatches after the boundary is computed again: the random numbers
of a layer depend on the microbatch alone.
"""

from collections.abc import Callable, Mapping

import torch

from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.checkpoints.content import read as read_part
from pipekit.engine.checkpoints.writer import Losses, Tensors
from pipekit.engine.config import ResumeConfig
from pipekit.engine.execution.stage import Stage
from pipekit.layers.buffers import set_buffers
from pipekit.partition.recording.stage import set_extra_states
from pipekit.schedules import OPS, Op, Step


class Restorer:
    """Executes the steps of a run that is taken up again: those before the boundary are repeated.

    Args:
        worker: its number.
        stages: those that live there, ready for the run; they are put back.
        losses: gets those of the microbatches before the boundary.
        config: where the run is taken up.
        execute: executes a step after the boundary.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, Stage],
        losses: Losses,
        config: ResumeConfig,
        execute: Callable[[Step], None],
    ) -> None:
        self._done, self._execute = config.boundary, execute
        self._stages = {
            number: _Restored(stage, number, config, worker, losses)
            for number, stage in stages.items()
        }

    def execute(self, step: Step) -> None:
        """Execute a step, or put things where it left them if it was done before the boundary."""
        if step.task.microbatch < self._done.microbatches:
            self._stages[step.task.stage].repeat(step)
        else:
            self._execute(step)


class _Restored:
    """A stage as it was at a boundary, put together while the run's table is gone through again."""

    def __init__(
        self, stage: Stage, index: int, config: ResumeConfig, worker: int, losses: Losses
    ) -> None:
        self._stage = stage
        parts = checkpoints.parts_of(config.checkpoint)
        content = read_part(next(part for part in parts if part[:2] == (index, worker)))
        set_buffers(stage.weights.newest, content["buffers"])
        for layers in stage.weights.modules:
            set_extra_states(layers, content["extra_states"])
        if stage.scaler:
            stage.scaler.take_up(content["scales"])
        losses += [(k, torch.tensor(x, dtype=torch.float64)) for k, x in content["losses"]]
        newest = config.boundary.versions[index]
        self._versions: dict[int, Tensors] = content["older"] | {newest: content["parameters"]}
        self._restore(0, 0)

    def repeat(self, step: Step) -> None:
        """Put things where a task left them that was done before the boundary."""
        op, _, _, version = step.task
        if OPS[op].adds_gradient:
            # Other gradients in that slot are set aside, and summed as they were.
            self._stage.weights.accumulate(step.slot, step.update)
        elif op is Op.UPDATE:
            self._stage.weights.gradients(version)
            self._restore(version, step.slot)

    def _restore(self, version: int, slot: int) -> None:
        if version in self._versions:
            self._stage.weights.restore(slot, self._versions.pop(version), version)
