"""The passes of a stage: what a forward leaves for its backward, recomputed if need be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.engine.observers.memory_tracker import Held
from pipekit.layers.autocast import autocast
from pipekit.layers.buffers import buffers_untouched
from pipekit.layers.pass_state import during
from pipekit.layers.randomness import layer_seed
from pipekit.layers.seeded import Seeded
from pipekit.skips import Name, carrying
from pipekit.trees import Tree, differentiable, tree_map

Loss = Callable[[Any, Any], Tensor]


@dataclass(kw_only=True)
class Section:
    """A stage's place in the model.

    Attributes:
        index: the stage, from 0.
        first_layer: index of its first layer in the unsplit model.
        random_layers: indices, in the unsplit model, of its layers that draw random numbers.
        edits_input: whether its layers edit their input in place, as ``ReLU(inplace=True)`` does.
        differentiates_input: whether a backward gives the gradients of the input.
        seed: of the layers' random numbers.
        autocast: what operators compute in where that is safe (:class:`torch.autocast`), or None.
        pops: names and numbers of the skip connections that end here.
        stashes: of those that begin here.
    """

    index: int
    first_layer: int
    random_layers: frozenset[int]
    edits_input: bool
    differentiates_input: bool
    seed: int
    autocast: torch.dtype | None = None
    pops: Mapping[Name, int] = field(default_factory=dict)
    stashes: Mapping[Name, int] = field(default_factory=dict)


class Target(NamedTuple):
    """What the last stage compares its output with, and the microbatch's weight in the loss."""

    loss: Loss
    target: Tree
    weight: float


class Flow(NamedTuple):
    """What a stage takes in or gives out.

    Attributes:
        main: from the stage before, or to the next one.
        skips: by number of the skip connection.
    """

    main: Tree
    skips: dict[int, Tensor]


class FlowGradients(NamedTuple):
    """Gradients of a flow, those that there are.

    Attributes:
        main: of the differentiable tensors of the main way, by number.
        skips: by number of the skip connection.
    """

    main: dict[int, Tensor]
    skips: dict[int, Tensor]


class _Pending(NamedTuple):
    """A microbatch between its forward and its backward.

    ``gradients`` gets those of the input, as autograd computed them: a leaf's ``.grad`` may have
    other strides, and strides change how later sums are rounded.
    """

    input: Flow
    output: Flow | None  # None: to be recomputed
    target: Target | None
    gradients: FlowGradients


class Passes:
    """Runs the passes of one stage, and keeps what is pending between the two of a microbatch.

    Args:
        section: the stage's place in the model.
        modules: its layers, once for each weight buffer; whoever owns the list may change it.
        device: where they compute.
    """

    def __init__(
        self, section: Section, modules: Sequence[nn.Sequential], device: torch.device
    ) -> None:
        self.section, self.modules, self.device = section, modules, device
        self._pending: dict[int, _Pending] = {}
        self._watch_backward = bool(section.random_layers)
        self.held: Held | None = None

    def infer(self, x: Flow, microbatch: int) -> Flow:
        """Return the output for ``x``, keeping nothing."""
        with torch.no_grad(), autocast(self.device, self.section.autocast):
            return self._run(0, x, microbatch, keep=False)

    def forward(
        self, x: Flow, microbatch: int, buffer: int, target: Target | None, recompute: bool
    ) -> Flow:
        """Return the output for ``x``, cut from the graph; on the last stage, the weighted loss.

        Args:
            x: the input, with leading dimension rows.
            microbatch: its index over all runs, the key of its random numbers.
            buffer: the weight buffer to read.
            target: on the last stage, what to compare with; else None.
            recompute: keep only the input until the backward.
        """
        gradients = FlowGradients({}, {})
        if self.section.differentiates_input:
            for number, tensor in enumerate(differentiable(x.main)):
                tensor.requires_grad_().register_hook(partial(_take, gradients.main, number))
            for skip, tensor in x.skips.items():
                if differentiable(tensor):
                    tensor.requires_grad_().register_hook(partial(_take, gradients.skips, skip))
        if self.held:
            self.held.keep(microbatch, (*x, () if target is None else target.target))
        with self._keeping(microbatch, recompute):
            output = self._compute(x, microbatch, buffer, target)
        if self.held and not recompute:
            self.held.keep(microbatch, tuple(output))
        self._pending[microbatch] = _Pending(x, None if recompute else output, target, gradients)
        return Flow(tree_map(Tensor.detach, output.main), tree_map(Tensor.detach, output.skips))

    def recompute(self, microbatch: int, buffer: int) -> bool:
        """Run a forward again if its graph was not kept; return whether it was run."""
        pending = self._pending[microbatch]
        if pending.output is not None:
            return False
        again = self.held.follow(microbatch, again=True) if self.held else nullcontext()
        with again, buffers_untouched(self.modules[buffer]), during(recomputing=True):
            output = self._compute(pending.input, microbatch, buffer, pending.target)
        if self.held:
            self.held.keep(microbatch, tuple(output), again=True)
        self._pending[microbatch] = pending._replace(output=output)
        return True

    def output(self, microbatch: int) -> Flow:
        """Return what a pending forward gave, with its graph; recomputed if need be."""
        output = self._pending[microbatch].output
        assert output is not None, "recompute() comes first"
        return output

    def backward(
        self, microbatch: int, buffer: int, update: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        """Add the microbatch's gradients to those of the weights.

        Args:
            microbatch: one whose forward is pending, and recomputed if need be.
            buffer: the weight buffer that its graph reads.
            update: the update that sums these gradients, for whoever has several.
            gradients: of the output; None if that is a loss, for ones.

        Returns:
            Likewise those of the input, for the stages that it came from.

        Raises:
            ValueError: a layer draws random numbers in its backward.
        """
        output = self.output(microbatch)
        arrived = self._pending.pop(microbatch).gradients
        roots: list[Tensor] = [output.main]
        seeds: list[Tensor] | None = None
        if gradients is not None:
            outputs = differentiable(output.main)
            pairs = [(outputs[n], g) for n, g in gradients.main.items()]
            pairs += [(output.skips[n], g) for n, g in gradients.skips.items()]
            reached = [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]
            roots, seeds = [tensor for tensor, _ in reached], [g for _, g in reached]
        if roots and roots[0].requires_grad:
            if self._watch_backward:
                self._watch_backward = False
                with Seeded(0, self.device) as watched:
                    torch.autograd.backward(roots, seeds)
                if watched.drew:
                    raise ValueError(
                        "a layer draws random numbers in its backward, which cannot be the same "
                        "as in its forward: instead of torch.utils.checkpoint within a layer, use "
                        "recompute='always'"
                    )
            else:
                torch.autograd.backward(roots, seeds)
        if self.held:
            self.held.drop(microbatch)
        return FlowGradients(dict(sorted(arrived.main.items())), arrived.skips)

    def _keeping(self, microbatch: int, recompute: bool) -> AbstractContextManager[Any]:
        """Return a context in which a forward keeps nothing, or what it keeps is counted."""
        if recompute:
            return _checkpointing()
        return self.held.follow(microbatch) if self.held else nullcontext()

    def _compute(self, x: Flow, microbatch: int, buffer: int, target: Target | None) -> Flow:
        with autocast(self.device, self.section.autocast):
            output = self._run(buffer, x, microbatch)
            if target is None:
                return output
            loss = target.loss(output.main, target.target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TypeError("the loss must return a tensor with one number for each microbatch")
        return Flow(loss * target.weight if target.weight != 1.0 else loss, {})

    def _run(self, buffer: int, x: Flow, microbatch: int, keep: bool = True) -> Flow:
        main = self._own(x.main)
        section = self.section
        if not section.pops and not section.stashes:
            return Flow(self._layers(buffer, main, microbatch), {})
        with carrying({name: x.skips[n] for name, n in section.pops.items()}) as carried:
            if not keep:
                x.skips.clear()  # whoever pops a skip has the last of it
            main = self._layers(buffer, main, microbatch)
        return Flow(main, {n: carried.outgoing[name] for name, n in section.stashes.items()})

    def _layers(self, buffer: int, x: Tree, microbatch: int) -> Tree:
        module = self.modules[buffer]
        if not self.section.random_layers:
            return module(x)
        for number, layer in enumerate(module, start=self.section.first_layer):
            if number in self.section.random_layers:
                with Seeded(layer_seed(self.section.seed, number, microbatch), self.device):
                    x = layer(x)
            else:
                x = layer(x)
        return x

    def _own(self, x: Tree) -> Tree:
        """Return an input that the layers may edit: neither the sender's tensor nor a leaf."""
        return tree_map(torch.clone, x) if self.section.edits_input else x


@contextmanager
def _checkpointing() -> Iterator[None]:
    with torch.no_grad(), during(checkpointing=True):
        yield


def _take(gradients: dict[int, Tensor], number: int, gradient: Tensor | None) -> None:
    if gradient is not None:  # as an autograd function of the user's may return
        # An alias: autograd copies the gradient of a leaf if somebody else holds the tensor itself.
        gradients[number] = gradient.detach()
