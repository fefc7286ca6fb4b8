"""A stage as the equations have it: all weights that ever were, and sums of its gradients."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.oracle.mitigation_equations import Equations, Past, Weights


class Stage:
    """The parameters of one stage, with all that they ever were."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],  # by their names in the unsplit model
        width: int,  # workers that it is on
        length: int,  # batches that an update averages
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        lr_scheduler: Callable[[Optimizer], LRScheduler] | None,
        averaged: bool,  # whether the loss is a mean
        shares: Sequence[Sequence[int]] | None,  # microbatches of each worker; None: in turn
        past: Past,  # where it is, and what it was: nothing yet
        mitigation: Equations | None,
    ) -> None:
        self._shares, self._past, self._mitigation = shares, past, mitigation
        self._equations, self._read = mitigation or Equations(), 0
        self._parameters, self._width, self._length = parameters, width, length
        self._averaged = averaged
        self.optimizer = optimizer(list(parameters.values())) if parameters else None
        self._scheduler = lr_scheduler(self.optimizer) if lr_scheduler and self.optimizer else None
        self._note(self._copy())
        self._taken: dict[int, Weights] = {}  # by microbatch, since the last update
        self._batches: set[int] = set()  # since the last update

    def load(self, version: int) -> None:
        """Overwrite the parameters with a version of the weights.

        Through ``.data``, which autograd does not watch: training without weight stashing changes
        the weights between a forward and its backward, which the graph has saved by reference.
        """
        self._read = version
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._equations.forward(self._past, name, version))

    def load_for_backward(self) -> None:
        """Overwrite the parameters with what a backward reads that comes without stashing."""
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._equations.backward(self._past, name, self._updates))

    def load_newest(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._past.weights[-1][name])

    def take_gradients(self, microbatch: int, batch: int) -> None:
        self._batches.add(batch)
        own = self._taken[microbatch] = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                own[name] = parameter.grad
            parameter.grad = None

    def ends_round(self) -> bool:
        """Return whether an update comes now, after a batch."""
        return len(self._batches) == self._length

    def sum_gradients(self) -> None:
        """Sum over the workers, in order, and average over the batches since the last update."""
        for name, parameter in self._parameters.items():
            for share in self._of_workers():
                own: Tensor | None = None
                for microbatch in share:
                    gradient = self._taken[microbatch].get(name)
                    if gradient is not None:
                        own = gradient if own is None else own + gradient
                if own is not None:
                    parameter.grad = own if parameter.grad is None else parameter.grad + own
            if parameter.grad is not None and self._averaged and len(self._batches) > 1:
                parameter.grad = parameter.grad / len(self._batches)
        self._taken = {}
        self._batches.clear()

    def _of_workers(self) -> list[list[int]]:
        if self._shares is None:
            return [[k for k in self._taken if k % self._width == w] for w in range(self._width)]
        first = min(self._taken)
        return [[first + k for k in share] for share in self._shares]

    def update(self, made: bool) -> None:
        """Add a version: that of an optimizer's step, or if that is not ``made``, the newest."""
        if self.optimizer and made:
            self._step(self.optimizer)
        if self._scheduler and made:
            self._scheduler.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._note(self._copy())

    @property
    def _updates(self) -> int:
        return len(self._past.weights) - 1

    def _step(self, optimizer: Optimizer) -> None:
        if self._mitigation is None:
            optimizer.step()
            return
        past, equations, t = self._past, self._mitigation, self._updates
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                parameter.grad = equations.gradient(past, name, self._read, t, parameter.grad)
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * equations.rate(past, t)
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        past.stepped.append(self._copy())
        for name, parameter in self._parameters.items():
            parameter.data.copy_(equations.after(past, name, t))

    def _note(self, weights: Weights) -> None:
        self._past.weights.append(weights)
        if self._mitigation and self.optimizer:
            state: Mapping[Any, dict[str, Any]] = self.optimizer.state
            groups = self.optimizer.param_groups
            options = {p: {**g, "params": []} for g in groups for p in g["params"]}
            named = self._parameters.items()
            self._past.states.append({n: copy.deepcopy(state.get(p, {})) for n, p in named})
            self._past.options.append({name: options[p] for name, p in named})

    def _copy(self) -> Weights:
        return {name: p.detach().clone() for name, p in self._parameters.items()}
