"""Restores a worker's stages from a checkpoint, while the run's table is gone through.

Everything computed for microbatches after the boundary is computed again: the random numbers of a
layer depend on the microbatch alone.
"""

from collections.abc import Callable, Mapping

from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.checkpoints.resume_point import Tensors, read_part
from pipekit.engine.config import ResumeConfig
from pipekit.engine.execution.pipeline_io import LossLog
from pipekit.engine.execution.stage import Stage
from pipekit.layers.module_state import set_buffers
from pipekit.partition.recording.stage import set_extra_states
from pipekit.schedules import Op, Step


def restoring(
    execute: Callable[[Step], None],
    resume: ResumeConfig,
    worker: int,
    stages: Mapping[int, Stage],
    losses: LossLog,
) -> Callable[[Step], None]:
    """Return what executes a worker's steps, of which those before the boundary are restored."""
    restored = {
        number: _Restored(stage, number, resume, worker, losses) for number, stage in stages.items()
    }

    def run(step: Step) -> None:
        if step.task.microbatch < resume.boundary.microbatches:
            restored[step.task.stage].repeat(step)
        else:
            execute(step)

    return run


class _Restored:
    """A stage as it was at a boundary, restored step by step."""

    def __init__(
        self, stage: Stage, index: int, config: ResumeConfig, worker: int, losses: LossLog
    ) -> None:
        self._stage = stage
        parts = checkpoints.parts_of(config.checkpoint)
        content = read_part(next(part for part in parts if part[:2] == (index, worker)))
        set_buffers(stage.weights.newest, content["buffers"])
        for layers in stage.weights.modules:
            set_extra_states(layers, content["extra_states"])
        if stage.scaler:
            stage.scaler.take_up(content["scales"])
        for microbatch, loss in content["losses"]:
            losses.add(microbatch, loss)
        newest = config.boundary.versions[index]
        self._versions: dict[int, Tensors] = content["older"] | {newest: content["parameters"]}
        self._restore(0, 0)

    def repeat(self, step: Step) -> None:
        """Restore the results of a task that was done before the boundary."""
        op, _, _, version = step.task
        if op.adds_gradient:
            # Other gradients in that slot are set aside, and summed as they were.
            self._stage.weights.accumulate(step.slot, step.update)
        elif op is Op.UPDATE:
            self._stage.weights.gradients(version)
            self._restore(version, step.slot)

    def _restore(self, version: int, slot: int) -> None:
        if version in self._versions:
            self._stage.weights.restore(slot, self._versions.pop(version), version)
