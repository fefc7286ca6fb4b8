"""Runs a forward again before its backward, if the first one kept only its input (GPipe, 2.3)."""

from collections.abc import Mapping

from pipekit.engine.execution.executor import Executor
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.parts.part import Execute, Part, WorkerRun
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step


class Recomputation(Part):
    """Wraps every step: a backward comes after a second forward, which waits for no gradient.

    The second forward runs right before the backward, or where the table has it.
    """

    def __init__(self, run: WorkerRun) -> None:
        self._modes = run.recompute

    def around(self, execute: Execute, executor: Executor, updates: UpdateSynchronizer) -> Execute:
        return recomputing(execute, executor, self._modes)


def recomputing(execute: Execute, executor: Executor, modes: Mapping[int, Recompute]) -> Execute:
    """Return what executes a step, and before a backward the forward again, by stages' modes."""

    def run(step: Step) -> None:
        op, stage, _, _ = step.task
        if op is Op.RECOMPUTE:
            executor.recompute(step)
            return
        is_due = op in (Op.BACKWARD, Op.BACKWARD_INPUT) and not step.again_at_a_place
        if is_due and step.recomputed(modes[stage]):
            executor.recompute(step)
        execute(step)

    return run
