"""PipeDream-2BW's update equations against really trained weights (section 3.1, 3.2, 3.3)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.datasets import Batch
from pipekit.engine import OptimizerFactory, Pipeline, Run
from pipekit.papers.trainings.judged import judged
from pipekit.schedules import Schedule, replicate


class Momentum(Optimizer):
    """m_t = beta m_{t-1} + (1 - beta) g, W = W - lr m_t, as section 3.1 writes it."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, beta: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                parameter.add_(mean, alpha=-group["lr"])


class Compared(NamedTuple):
    """A training by the engine beside the same by its equation.

    ``difference`` is the relative 2-norm of the final weights' difference; losses are equal if they
    have the same bits; ``states`` are optimizer state tensors a parameter, in the stage that has
    the most.
    """

    difference: float
    losses_equal: bool
    run: Run
    states: float


def against_equation(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    method: str,
    balance: Sequence[int],
    microbatches: int,
    optimizer: OptimizerFactory,
    *,
    width: int = 1,
    transport: str = "threads",
) -> Compared:
    """Train by a schedule and by its update equation, a name of :mod:`pipekit.oracle`.

    The schedule is of one pipeline; with ``width`` pipelines side by side a batch has
    ``width * microbatches`` microbatches. "sequential" is plain training.
    """
    made: list[Optimizer] = []

    def watched(parameters: list[nn.Parameter]) -> Optimizer:
        made.append(optimizer(parameters))
        return made[-1]

    found = judged(
        model,
        batches,
        replicate(schedule, width),
        method,
        balance=balance,
        replicas=[width] * len(balance),
        microbatches=microbatches * width,
        optimizer=watched if transport == "threads" else optimizer,
        loss=nn.MSELoss(),
        transport=transport,
    )
    states = max((_states(each) for each in made), default=0.0)
    return Compared(found.difference, found.losses_equal, found.run, states)


def rows_of_microbatches(
    model: nn.Sequential, batch: Batch, schedule: Schedule, balance: Sequence[int]
) -> list[int]:
    """Return the rows of each microbatch that the engine makes of one batch."""
    rows: list[int] = []
    loss = nn.MSELoss()

    def counting(output: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # the engine first tries the model without gradients
            rows.append(len(output))
        found: Tensor = loss(output, target)
        return found

    pipeline = Pipeline(
        model, schedule, balance=balance, optimizer=lambda p: torch.optim.SGD(p, 0.1), loss=counting
    )
    pipeline.train([batch], trace=False)
    return rows


def crossing_bytes(run: Run, width: int) -> tuple[int, int]:
    """Return bytes of activations and of their gradients that change pipeline, and of weights'.

    Worker ``w * width + r`` belongs to pipeline r (:func:`replicate`).
    """
    traffic = run.traffic
    changes = traffic[traffic["source"] % width != traffic["destination"] % width]
    weights = changes["purpose"] == "weights"
    return int(changes.loc[~weights, "bytes"].sum()), int(changes.loc[weights, "bytes"].sum())


def _states(optimizer: Optimizer) -> float:
    """Return the state tensors of a parameter's shape, for each parameter of an optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    shapes = [tensor for state in optimizer.state.values() for tensor in state.values()]
    kept = sum(tensor.dim() > 0 for tensor in shapes if isinstance(tensor, Tensor))
    return kept / len(parameters)
