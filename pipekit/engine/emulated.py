"""Modelled compute on the real engine: stages that wait, and pass on tensors of the right size.

So sixteen workers run for real on two cores: the worker loop, the messages, their order and the
weight versions are the engine's own, and only what a stage computes is a wait of the profiled
seconds.  What the engine itself takes, some tenths of a millisecond a task, comes on top.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipekit.clusters import Cluster
from pipekit.costs import StageCosts, stage_costs
from pipekit.engine.pipeline import Pipeline
from pipekit.engine.run import Run
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.provenance import provenance
from pipekit.schedules import Schedule

_FLOAT_BYTES = 4


def emulate(
    schedule: Schedule,
    profile: Profile,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Run a schedule for real with modelled compute and links; see :func:`pipekit.simulate`.

    Messages have the profiled bytes; weights do not, so that a model of any size can be emulated.

    Args:
        schedule: the table.
        profile: what each layer costs.
        plan: which layers each stage has, and what is recomputed; None: one profiled layer a stage.
        cluster: links to slow the messages down to; None: as fast as threads hand them over.

    Returns:
        A run whose trace is labelled "emulated"; its losses are zeros.

    Raises:
        ScheduleError: the schedule cannot be executed, or has replicated stages.
        ValueError: schedule, profile, plan and cluster do not fit together.
    """
    costs = stage_costs(schedule, profile, plan)
    pipeline = Pipeline(
        nn.Sequential(*(EmulatedStage(cost, sends=cost is not costs[-1]) for cost in costs)),
        schedule,
        balance=[1] * len(costs),
        optimizer=emulated_optimizer,
        loss=_no_loss,
        devices=["cpu"] * len(schedule.workers),
        recompute=[cost.recompute for cost in costs],
        cluster=cluster,
    )
    batches = [(torch.zeros(len(b), 1), torch.zeros(len(b), 1)) for b in schedule.batches]
    run = pipeline.train(batches)
    return replace(
        run,
        trace=replace(run.trace, label="emulated"),
        provenance=provenance("emulated", profile=dict(profile.provenance)),
    )


class Waiter:
    """Waits as long as it is told on average: a wait that ended late shortens the next."""

    def __init__(self) -> None:
        self._late = 0.0

    def wait(self, seconds: float) -> None:
        """Return ``seconds`` later, less what the last wait was late."""
        end = time.perf_counter() + seconds - self._late
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        self._late = time.perf_counter() - end

    def __deepcopy__(self, memo: dict[int, Any]) -> "Waiter":
        """Return itself: the weight versions of a stage share one worker."""
        return self


class EmulatedStage(nn.Module):
    """A stage whose passes are waits.

    Its one parameter is the seconds of its update, where :func:`emulated_optimizer` finds it.

    Args:
        cost: the seconds and bytes of the stage.
        sends: whether its output is sent; else it has no bytes.
    """

    def __init__(self, cost: StageCosts, sends: bool) -> None:
        super().__init__()
        self.update_s = nn.Parameter(torch.tensor([cost.whole.update_s], dtype=torch.float64))
        self.forward_s, self.backward_s = cost.whole.forward_s, cost.whole.backward_s
        self.numbers = math.ceil(cost.whole.output_bytes / _FLOAT_BYTES) if sends else 0
        self.waiter = Waiter()

    def forward(self, x: Tensor) -> Tensor:
        """Return [1, numbers] after the forward's seconds, whatever ``x`` is."""
        self.waiter.wait(self.forward_s)
        output: Tensor = _Pass.apply(x, self.update_s, self.numbers, self._wait_backward)
        return output

    def _wait_backward(self) -> None:
        self.waiter.wait(self.backward_s)


class _Pass(torch.autograd.Function):
    """Tensors of the right sizes, never written: only their bytes matter."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, parameter: Tensor, numbers: int, wait: Callable[[], None]
    ) -> Tensor:
        ctx.wait, ctx.shape = wait, x.shape
        return torch.empty(1, numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        ctx.wait()
        x = torch.empty(ctx.shape) if ctx.needs_input_grad[0] else None
        return x, torch.zeros(1, dtype=torch.float64), None, None


def emulated_optimizer(parameters: list[nn.Parameter]) -> torch.optim.SGD:
    """Return an optimizer that changes nothing, and takes the seconds that its parameter names."""
    (update_s,), waiter = [p.item() for p in parameters], Waiter()
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    optimizer.register_step_post_hook(lambda *_: waiter.wait(update_s))
    return optimizer


def _no_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return 0, from which a backward can start."""
    return output.sum()
