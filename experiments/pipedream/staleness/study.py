"""A small network trained by the engine, and by PipeDream's equations written out (section 3.4)."""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from experiments.pipedream.staleness.versions import STAGES
from experiments.study.differences import Tensors, relative_difference
from pipekit.datasets import Batch
from pipekit.engine import Pipeline, Watch
from pipekit.schedules import Schedule


class Study:
    """A small network on a straight pipeline, trained with plain SGD."""

    def __init__(
        self,
        model: nn.Sequential,
        balance: Sequence[int],
        batches: Sequence[Batch],
        loss: Callable[[Tensor, Tensor], Tensor],
        lr: float,
    ) -> None:
        self.model, self.balance, self.batches = copy.deepcopy(model), list(balance), batches
        self.loss, self.lr = loss, lr
        layers = [stage for stage, count in enumerate(balance) for _ in range(count)]
        self._stage = {
            name: layers[int(name.split(".")[0])] for name, _ in self.model.named_parameters()
        }

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.balance)

    def pipeline(
        self, schedule: Schedule, momentum: float = 0.0, transport: str = "threads"
    ) -> Pipeline:
        """Return the engine, ready to train by a schedule."""
        return Pipeline(
            self.model,
            schedule,
            balance=self.balance,
            optimizer=partial(torch.optim.SGD, lr=self.lr, momentum=momentum),
            loss=self.loss,
            transport=transport,
        )

    def engine_history(self, schedule: Schedule) -> list[Tensors]:
        """Return the engine's weights after 0, 1, 2, ... minibatches (W(t) of section 3.4).

        W(t) does not depend on the minibatches after t, so that each is the end of a run of t.
        """
        history: list[Tensors] = [_copy(self.model)]
        for count in range(1, len(self.batches) + 1):
            pipeline = self.pipeline(schedule)
            pipeline.train(self.batches[:count], watch=Watch(trace=False))
            history.append(dict(pipeline.state_dict()))
        return history

    def replay(self, delays: Sequence[int]) -> list[Tensors]:
        """Return W(0), W(1), ... of w(t+1) = w(t) - lr * grad f(w_s(t - delays[s]) on stage s).

        Serially, with a list of all past weights; a version before the first is W(0).
        """
        history: list[Tensors] = [_copy(self.model)]
        for t in range(len(self.batches)):
            gradient = self.gradient(self.mixed(history, [t - delay for delay in delays]), t)
            history.append(self.stepped(history[-1], gradient))
        return history

    def mixed(self, history: Sequence[Tensors], versions: Sequence[int]) -> Tensors:
        """Return the weights that have version ``versions[s]`` on stage ``s``."""
        return {name: history[max(versions[stage], 0)][name] for name, stage in self._stage.items()}

    def gradient(self, weights: Tensors, minibatch: int) -> Tensors:
        """Return the gradient of f on a minibatch, by autograd on the undivided model."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(weights)
        inputs, targets = self.batches[minibatch]
        self.loss(model(inputs), targets).backward()
        return {
            name: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def stepped(self, weights: Tensors, gradient: Tensors) -> Tensors:
        """Return weights - lr * gradient."""
        return {n: tensor.add(gradient[n], alpha=-self.lr) for n, tensor in weights.items()}

    def implied(self, before: Tensors, after: Tensors) -> Tensors:
        """Return the gradient that an update has followed: (before - after) / lr."""
        return {name: (before[name] - after[name]) / self.lr for name in self._stage}

    def gradient_errors(
        self, history: Sequence[Tensors], versions: Sequence[Callable[[int], int]]
    ) -> list[float]:
        """Return, for each update in steady state, how far it is from the gradient of f.

        The distance is ||g - grad f|| / ||grad f||, grad f at version ``versions[s](t)`` on stage
        ``s``.
        """
        errors = []
        for t in range(self.stages - 1, len(self.batches)):
            weights = self.mixed(history, [version(t) for version in versions])
            found = self.implied(history[t], history[t + 1])
            errors.append(relative_difference(found, self.gradient(weights, t)))
        return errors


def largest_relative_difference(a: Sequence[Tensors], b: Sequence[Tensors]) -> float:
    """Return the largest ||a - b|| / ||b|| over all updates."""
    return max(relative_difference(x, y) for x, y in zip(a, b, strict=True))


def stashing_delays(stages: int) -> list[int]:
    """Return how many updates old each stage's weights are, by the equation of weight stashing."""
    return [stages - 1 - stage for stage in range(stages)]


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def make_study(dtype: torch.dtype, minibatches: int, width: int, lr: float, seed: int) -> Study:
    """Return a network of one linear and one nonlinear layer a stage, with random data."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(STAGES) for layer in (nn.Linear(width, width), nn.Tanh())]
    shape = 8, width
    data = [
        (torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype))
        for _ in range(minibatches)
    ]
    return Study(nn.Sequential(*layers).to(dtype), [2] * STAGES, data, nn.MSELoss(), lr)


def make_studies(minibatches: int, width: int, lr: float, seed: int) -> tuple[Study, Study]:
    """Return :func:`make_study` in float32 and in float64."""
    how = minibatches, width, lr, seed
    return make_study(torch.float32, *how), make_study(torch.float64, *how)
