"""The judge: the plain loop in float64, and the gradients of every microbatch alone.

The plain loop runs a whole batch through the whole model and steps SGD.  Nothing here knows
stages, schedules or processes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.oracle.shared_weights import with_copies
from pipekit.parity.suite import Batch, Case, count, loss

Tensors = dict[str, Tensor]
Rows = tuple[int, ...]  # the first, the one behind the last, and perhaps the distance of two
LEARNING_RATE = 0.25  # large, since a change of float32 weights shows a small step only roughly


@dataclass(frozen=True)
class Pass:
    """One forward and backward of some rows, right or as a fault has it."""

    step: int  # whose batch it is of
    rows: Rows  # of the batch
    delays: tuple[int, ...]  # by how many updates the weights that a forward reads are older
    backward: tuple[int, ...] | None = None  # likewise a backward, by layer; None: the same
    order: tuple[int, ...] | None = None  # the layers as they run; None: each once
    # Some layers, and what such a layer and its input give instead of its output.
    through: tuple[tuple[int, ...], Callable[[nn.Module, Any], Any]] = ((), nn.Module.__call__)
    # From its rows' inputs and targets, and those of the batch before, to what it has of them.
    given: Callable[[Tensor, Tensor, Tensor, Tensor], Batch] | None = None
    loss: Callable[[Any, Tensor], Tensor] = loss
    training: bool = True  # whether layers are in training mode


class PassResult(NamedTuple):
    """What passes give."""

    loss: float  # a mean
    gradients: Tensors  # of a shared weight the sum over its uses
    of_use: Tensors  # of each use alone
    buffers: Tensors  # afterwards


class PlainLoop:
    """A model in float64 with its batches; each of its passes reads the weights that it is given.

    ``uses`` are all names of the weight that has a name.  The caller adds to ``weights`` and
    ``buffers``, by version and name, those that a trainer has reached.  All batches have ``rows``.
    """

    def __init__(self, case: Case, batches: Sequence[Batch]) -> None:
        self.case, self.batches, model = case, batches, case.model()
        self._model = with_copies(model, [1] * len(model)).double()
        self._layers = list(self._model)
        self.depth, self.rows = len(model), len(batches[0][0])
        shared: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            shared.setdefault(id(parameter), []).append(name)
        self.uses = {name: tuple(names) for names in shared.values() for name in names}
        self._parameters = dict(self._model.named_parameters())
        self._own_buffers = dict(self._model.named_buffers())
        self.frozen = {n for n, p in self._parameters.items() if not p.requires_grad}
        self.weights = [{n: p.detach().clone() for n, p in self._parameters.items()}]
        self.buffers = [{name: buffer.clone() for name, buffer in self._own_buffers.items()}]
        self.run = cache(self.run_anew)  # what a pass gives, computed once

    def layer(self, name: str) -> int:
        return int(name.partition(".")[0])

    def train(self, steps: int, microbatches: int, clip_norm: float | None) -> list[Tensors]:
        """Return the weights of the plain loop after 0, 1, 2, ... updates."""
        own = PlainLoop(self.case, self.batches)
        for step in range(steps):
            gradients = own.expected(step, microbatches, clip_norm)
            own.advance({n: w - LEARNING_RATE * gradients[n] for n, w in own.weights[-1].items()})
        return own.weights

    def advance(self, weights: Tensors, buffers: Tensors | None = None) -> None:
        """Add the weights, and the buffers if they are known, after one more update."""
        self.weights.append(weights)
        self.buffers.append(buffers or self.buffers[-1])

    def expected(self, step: int, microbatches: int, clip_norm: float | None = None) -> Tensors:
        """Return the gradient of a batch's loss: what SGD is to be given."""
        gradients = self.batch(self.whole(step), self.together(microbatches)).gradients
        norm = torch.stack([g.norm() for n, g in gradients.items() if n == self.uses[n][0]]).norm()
        factor = min(1.0, clip_norm / (float(norm) + 1e-6)) if clip_norm else 1.0
        return {name: factor * gradient for name, gradient in gradients.items()}

    def batch(self, like: Pass, parts: Sequence[Rows], anew: bool = False) -> PassResult:
        """Return what passes of the parts add up to, each by its share of the terms of the mean.

        ``anew``: with new random numbers, and not kept.
        """
        shares = [self.share(like.step, rows) for rows in parts]
        passes = [replace(like, rows=rows) for rows in parts]
        found = [self.run_anew(each) if anew else self.run(each) for each in passes]
        if shares == [1.0]:
            return found[0]
        loss = sum(share * each.loss for share, each in zip(shares, found, strict=True))
        of_use = total(zip(shares, (each.of_use for each in found), strict=True))
        return PassResult(loss, self._over_uses(of_use), of_use, found[-1].buffers)

    def terms(self, step: int) -> int:
        """Return how many terms the mean over a batch has."""
        return count(self.batches[step][1])

    def share(self, step: int, rows: Rows) -> float:
        """Return which part of the terms of a batch's mean some rows have."""
        return count(self.batches[step][1][slice(*rows)]) / self.terms(step)

    def whole(self, step: int) -> Pass:
        """Return the pass of a whole batch."""
        return Pass(step, (0, self.rows), (0,) * self.depth)

    def cut(self, microbatches: int) -> list[Rows]:
        """Return the rows of each microbatch, as ``tensor_split`` cuts."""
        ends = torch.arange(self.rows + 1)[1:].tensor_split(microbatches)
        return list(pairwise([0, *(int(part[-1]) for part in ends)]))

    def together(self, microbatches: int) -> list[Rows]:
        """Return the rows that see one another: a microbatch's, or none, as if all did."""
        return self.cut(microbatches if self.case.coupled else 1)

    def running_statistics(self, step: int, microbatches: int) -> Tensors:
        """Return the buffers after a batch whose microbatches went through in turn."""
        before = self.buffers[step]
        for rows in self.cut(microbatches):
            before = self.run_anew(replace(self.whole(step), rows=rows), before).buffers
        return before

    def run_anew(
        self, what: Pass, buffers: Tensors | None = None, weights: Tensors | None = None
    ) -> PassResult:
        """Return what a pass gives, perhaps with other weights and buffers than the trainer's."""
        x, target = (part[slice(*what.rows)] for part in self.batches[what.step])
        if what.given:
            before = (part[slice(*what.rows)] for part in self.batches[max(what.step - 1, 0)])
            x, target = what.given(x, target, *before)
        self._model.train(what.training)
        self._load(what.step, what.delays, weights)
        for name, buffer in self._own_buffers.items():
            buffer.copy_((buffers or self.buffers[what.step])[name])
        value = x.double() if x.is_floating_point() else x
        layers, through = what.through
        for layer in range(self.depth) if what.order is None else what.order:
            own = self._layers[layer]
            value = through(own, value) if layer in layers else own(value)
        mean = what.loss(value, target)
        if what.backward is not None:
            self._load(what.step, what.backward)
        trained = {n: p for n, p in self._parameters.items() if p.requires_grad}
        found = torch.autograd.grad(mean, [*trained.values()], materialize_grads=True)
        of_use = dict(zip(trained, found, strict=True))
        of_use |= {n: torch.zeros_like(self._parameters[n]) for n in self.frozen}
        after = {name: buffer.clone() for name, buffer in self._own_buffers.items()}
        return PassResult(mean.item(), self._over_uses(of_use), of_use, after)

    def _over_uses(self, of_use: Tensors) -> Tensors:
        return {
            name: sum((of_use[use] for use in self.uses[name][1:]), of_use[self.uses[name][0]])
            for name in self._parameters
        }

    def _load(self, step: int, delays: Sequence[int], weights: Tensors | None = None) -> None:
        # Through .data, which autograd does not watch: a backward may read other weights.
        for name, parameter in self._parameters.items():
            version = max(step - delays[self.layer(name)], 0)
            parameter.data.copy_((weights or self.weights[version])[name])


def along(value: Tensor, right: Tensor) -> float:
    """Return by what a gradient is multiplied, as far as it is; any is more than 1 x nothing."""
    size = float((right * right).sum())
    return float((value * right).sum()) / size if size else 1.0 + float(value.abs().max())


def total(parts: Iterable[tuple[float, Tensors]]) -> Tensors:
    """Return a sum of gradients, each with its factor."""
    sums: Tensors = {}
    for factor, gradients in parts:
        for name, gradient in gradients.items():
            if name in sums:
                sums[name].add_(gradient, alpha=factor)
            else:
                sums[name] = factor * gradient
    return sums
