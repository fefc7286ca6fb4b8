"""PipeDream-2BW's update equations against really trained weights (section 3.1, 3.2, 3.3)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit import oracle
from pipekit.cores import available_cores
from pipekit.datasets import Batch
from pipekit.engine import Pipeline, Run
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.differences import relative_difference
from pipekit.schedules import Schedule, replicate

Weights = dict[str, Tensor]


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

    Attributes:
        difference: relative 2-norm of the final weights' difference.
        losses_equal: whether the losses have the same bits.
        run: the engine's.
        states: optimizer state tensors a parameter, in the stage that has the most.
    """

    difference: float
    losses_equal: bool
    run: Run
    states: float


def against_equation(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Callable[[int], Schedule],
    method: str,
    balance: Sequence[int],
    microbatches: int,
    optimizer: OptimizerFactory,
    *,
    width: int = 1,
    transport: str = "threads",
) -> Compared:
    """Train by a schedule and by its update equation.

    Args:
        model: the layers.
        batches: each of ``width * microbatches`` microbatches.
        schedule: of one pipeline, from the number of batches.
        method: the equation's name in :mod:`pipekit.oracle`; "sequential" is plain training.
        balance: layers of each stage.
        microbatches: of one pipeline in a batch, m.
        optimizer: makes an optimizer.
        width: pipelines side by side, w.
        transport: of the engine.
    """
    made: list[Optimizer] = []

    def watched(parameters: list[nn.Parameter]) -> Optimizer:
        made.append(optimizer(parameters))
        return made[-1]

    same: dict[str, Any] = {"balance": balance, "loss": nn.MSELoss()}
    pipeline = Pipeline(
        model,
        lambda n: replicate(schedule(n), width),
        optimizer=watched if transport == "threads" else optimizer,
        transport=transport,
        **same,
    )
    run = pipeline.train(batches)
    truth = oracle.train(
        model,
        batches,
        method=method,
        replicas=[width] * len(balance),
        microbatches=microbatches * width,
        optimizer=optimizer,
        threads=max(1, available_cores() // (width * len(balance))),
        **same,
    )
    difference = relative_difference(dict(pipeline.state_dict()), truth.weights[-1])
    states = max((_states(each) for each in made), default=0.0)
    return Compared(difference, run.losses == truth.losses, run, states)


def by_hand(model: nn.Sequential, batches: Sequence[Batch], lr: float, delay: int) -> list[Weights]:
    """Return W(0), W(1), ... of W(t+1) = W(t) - lr grad f(W(t - delay)), batches not cut.

    A version before the first is W(0).  Nothing of the engine or the oracle is used.
    """
    weights = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    loss = nn.MSELoss()
    for t, (x, y) in enumerate(batches):
        read = {
            name: value.clone().requires_grad_()
            for name, value in weights[max(t - delay, 0)].items()
        }
        output = torch.func.functional_call(model, read, (x,))
        gradients = torch.autograd.grad(loss(output, y), list(read.values()))
        weights.append(
            {
                name: torch.add(value, gradient, alpha=-lr)
                for (name, value), gradient in zip(weights[-1].items(), gradients, strict=True)
            }
        )
    return weights


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
    changes = traffic["source"] % width != traffic["destination"] % width
    weights = traffic["purpose"] == "weights"
    return int(traffic.loc[changes & ~weights, "bytes"].sum()), int(
        traffic.loc[changes & weights, "bytes"].sum()
    )


def _states(optimizer: Optimizer) -> float:
    """Return the state tensors of a parameter's shape, for each parameter of an optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    shapes = [tensor for state in optimizer.state.values() for tensor in state.values()]
    kept = sum(tensor.dim() > 0 for tensor in shapes if isinstance(tensor, Tensor))
    return kept / len(parameters)
