"""PipeDream-2BW's update equations against really trained weights (sections 3.1 to 3.3)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.study.differences import relative_difference
from pipekit import oracle
from pipekit.datasets import Batch
from pipekit.engine import OptimizerFactory, Pipeline, Run
from pipekit.host.cores import available_cores
from pipekit.schedules import Schedule, replicate


class Momentum(Optimizer):
    """m_t = beta m_{t-1} + (1 - beta) g, W = W - lr m_t, as section 3.1 writes it."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, beta: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                parameter.add_(mean, alpha=-group["lr"])


class Compared(NamedTuple):
    """A training by the engine beside the same by its equation."""

    run: Run
    difference: float  # relative 2-norm, of the final weights
    losses_equal: bool  # to the bit
    states: float  # optimizer state tensors a parameter, in the stage that has the most


def compared(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    equation: str,
    balance: Sequence[int],
    microbatches: int,
    optimizer: OptimizerFactory,
    *,
    width: int = 1,
    transport: str = "threads",
) -> Compared:
    """Train by a schedule of one pipeline and by an equation of :mod:`pipekit.oracle`."""
    made: list[Optimizer] = []

    def watched(parameters: list[nn.Parameter]) -> Optimizer:
        made.append(optimizer(parameters))
        return made[-1]

    how: dict[str, Any] = {"balance": balance, "loss": nn.MSELoss()}
    pipeline = Pipeline(
        model,
        replicate(schedule, width),
        optimizer=watched if transport == "threads" else optimizer,
        transport=transport,
        **how,
    )
    run = pipeline.train(batches)
    workers = width * len(balance)
    how |= {"replicas": [width] * len(balance), "microbatches": width * microbatches}
    how |= {"optimizer": optimizer, "threads": max(1, available_cores() // workers)}
    truth = oracle.train(model, batches, method=equation, **how)
    apart = relative_difference(dict(pipeline.state_dict()), truth.weights[-1])
    states = max((_states(each) for each in made), default=0.0)
    return Compared(run, apart, run.losses == truth.losses, states)


def crossing_bytes(run: Run, width: int) -> dict[str, int]:
    """Return the bytes that change pipeline: of activations and gradients, and of weights'."""
    traffic = run.traffic
    changes = traffic[traffic["source"] % width != traffic["destination"] % width]
    weights = changes["purpose"] == "weights"
    return {
        "bytes between pipelines": int(changes.loc[~weights, "bytes"].sum()),
        "gradients summed (bytes)": int(changes.loc[weights, "bytes"].sum()),
    }


def _states(optimizer: Optimizer) -> float:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [x for state in optimizer.state.values() for x in state.values()]
    return sum(isinstance(x, Tensor) and x.dim() > 0 for x in kept) / len(parameters)
