"""The judge: the plain loop in float64, and the gradients of every microbatch alone.

The plain loop runs a whole batch through the whole model and steps SGD.  Nothing here knows
stages, schedules or processes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.oracle.shared_weights import with_copies
from pipekit.parity.suite import Batch, Case, count, loss

Tensors = dict[str, Tensor]
Range = tuple[int | None, ...]  # the first, the one behind the last, perhaps the distance of two
Through = tuple[tuple[int, ...], Callable[[nn.Module, Any], Any]]
SEED = 7  # random numbers of batch k are drawn from this + k, as the trainer's are
LEARNING_RATE = 0.25  # large, since a change of float32 weights shows a small step only roughly


@dataclass(frozen=True)
class Pass:
    """One forward and backward of a part of a batch, right unless a fault has it otherwise."""

    rows: Range = (0, None)  # of the batch
    positions: Range = (0, None)  # in each row of tokens
    # By how many updates the weights that a forward reads are older, by layer; (): the newest.
    delays: tuple[int, ...] = ()
    backward: tuple[int, ...] | None = None  # likewise a backward; None: the same
    order: tuple[int, ...] | None = None  # the layers as they run; None: each once
    # Some layers, and what such a layer and its input give instead of its output.
    through: Through = ((), nn.Module.__call__)
    # From its inputs and targets, and those of the batch before, to what it has of them.
    given: Callable[[Tensor, Tensor, Tensor, Tensor], Batch] | None = None
    loss: Callable[[Any, Tensor], Tensor] = loss


class PassResult(NamedTuple):
    """What passes give."""

    loss: float  # a mean
    gradients: Tensors  # of a shared weight the sum over its uses
    of_use: Tensors  # of each use alone


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

    def train(
        self, steps: int, microbatches: int, clip_norm: float | None, held: Sequence[Tensors] = ()
    ) -> "PlainLoop":
        """Return a plain loop after so many updates; weights that are held, by version, stay so."""
        own, held = PlainLoop(self.case, self.batches), held or [{}] * (steps + 1)
        own.weights[0] |= held[0]
        for step in range(steps):
            gradients = own.expected(step, microbatches, clip_norm)
            before = own.weights[-1].items()
            updated = {n: w - LEARNING_RATE * gradients[n] for n, w in before}
            own.weights.append(updated | held[step + 1])
            own.buffers.append(own.buffers[-1])
        return own

    def expected(self, step: int, microbatches: int, clip_norm: float | None = None) -> Tensors:
        """Return the gradient of a batch's loss: what SGD is to be given."""
        gradients = self.batch(step, self.together(microbatches)).gradients
        norm = torch.stack([g.norm() for n, g in gradients.items() if n == self.uses[n][0]]).norm()
        factor = min(1.0, clip_norm / (float(norm) + 1e-6)) if clip_norm else 1.0
        return {name: factor * gradient for name, gradient in gradients.items()}

    def batch(self, step: int, passes: Iterable[Pass], anew: bool = False) -> PassResult:
        """Return what passes add up to, each by its share of the terms of the batch's mean.

        ``anew``: they are not kept, as those of a model that draws random numbers never are.
        """
        run = self.run_anew if anew or self.case.random else self.run
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(SEED + step)
            found = [(self.share(step, each), run(step, each)) for each in passes]
        of_use = total((share, result.of_use) for share, result in found)
        mean = sum(share * result.loss for share, result in found)
        return PassResult(mean, self._over_uses(of_use), of_use)

    def terms(self, step: int) -> int:
        """Return how many terms the mean over a batch has."""
        return count(self.batches[step][1])

    def share(self, step: int, part: Pass) -> float:
        """Return which part of the terms of a batch's mean a pass has."""
        return count(self._part(step, part)[1]) / self.terms(step)

    def cut(self, microbatches: int) -> list[Pass]:
        """Return the passes of microbatches, as ``tensor_split`` cuts."""
        ends = torch.arange(self.rows + 1)[1:].tensor_split(microbatches)
        return [*map(Pass, pairwise([0, *(int(part[-1]) for part in ends)]))]

    def together(self, microbatches: int) -> list[Pass]:
        """Return the passes of rows that see one another: a microbatch's, or all, if none does."""
        return self.cut(microbatches if self.case.coupled else 1)

    def running_statistics(self, step: int, microbatches: int) -> Tensors:
        """Return the buffers after a batch whose microbatches went through in turn."""
        buffers = self.buffers[step]
        for part in self.cut(microbatches):
            self.run_anew(step, part, buffers)
            buffers = {name: buffer.clone() for name, buffer in self._own_buffers.items()}
        return buffers

    def run_anew(self, step: int, what: Pass, instead: Tensors | None = None) -> PassResult:
        """Return what a pass gives, perhaps with other tensors instead of the trainer's own."""
        x, target = self._part(step, what)
        if what.given:
            x, target = what.given(x, target, *self._part(max(step - 1, 0), what))
        instead = instead or {}
        self._load(step, what.delays, instead)
        for name, buffer in self._own_buffers.items():
            buffer.copy_(instead.get(name, self.buffers[step][name]))
        value = x.double() if x.is_floating_point() else x
        layers, through = what.through
        for layer in range(self.depth) if what.order is None else what.order:
            own = self._layers[layer]
            value = through(own, value) if layer in layers else own(value)
        mean = what.loss(value, target)
        if what.backward is not None:
            self._load(step, what.backward, {})
        trained = {n: p for n, p in self._parameters.items() if p.requires_grad}
        found = torch.autograd.grad(mean, [*trained.values()], materialize_grads=True)
        of_use = dict(zip(trained, found, strict=True))
        of_use |= {n: torch.zeros_like(self._parameters[n]) for n in self.frozen}
        return PassResult(mean.item(), self._over_uses(of_use), of_use)

    def _part(self, step: int, what: Pass) -> Batch:
        index = (slice(*what.rows), slice(*what.positions))[: 1 + self.case.tokens]
        x, target = self.batches[step]
        return x[index], target[index]

    def _over_uses(self, of_use: Tensors) -> Tensors:
        return {
            name: sum((of_use[use] for use in self.uses[name][1:]), of_use[self.uses[name][0]])
            for name in self._parameters
        }

    def _load(self, step: int, delays: tuple[int, ...], instead: Tensors) -> None:
        # Through .data, which autograd does not watch: a backward may read other weights.
        for name, parameter in self._parameters.items():
            delay = delays[self.layer(name)] if delays else 0
            parameter.data.copy_(instead.get(name, self.weights[max(step - delay, 0)][name]))


def along(value: Tensor, right: Tensor) -> float:
    """Return by what a gradient is multiplied, as far as it is; any is more than 1 x nothing."""
    size = float((right * right).sum())
    return float((value * right).sum()) / size if size else 1.0 + float(value.abs().max())


def late(of: Callable[[int], Tensors], step: int) -> Tensors:
    """Return what comes an update late: nothing in the first one."""
    return total([(float(step > 0), of(max(step - 1, 0)))])


def total(parts: Iterable[tuple[float, Tensors]]) -> Tensors:
    """Return a sum of gradients, each with its factor."""
    sums: Tensors = {}
    for factor, gradients in parts:
        for name, gradient in gradients.items():
            sums[name] = sums.get(name, 0.0) + factor * gradient
    return sums
