"""A stage: some consecutive layers, their weight versions, and the passes that are pending."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.engine.held import Held
from pipekit.engine.module_buffers import buffers_untouched
from pipekit.engine.reducer import Reducer
from pipekit.engine.seeded import Seeded
from pipekit.engine.versions import LRSchedulerFactory, OptimizerFactory, WeightVersions
from pipekit.plans import Recompute
from pipekit.randomness import layer_seed
from pipekit.skips import Name, carrying
from pipekit.trees import Tree, differentiable, tree_map

Loss = Callable[[Any, Any], Tensor]


@dataclass
class StageSpec:
    """What a stage is made of; it can be sent to another process.

    Attributes:
        index: the stage, from 0.
        layers: its layers, with the newest weights.
        first_layer: index of its first layer in the unsplit model.
        random_layers: indices, in the unsplit model, of its layers that draw random numbers.
        edits_input: whether its layers edit their input in place, as ``ReLU(inplace=True)`` does.
        optimizer: makes its optimizer.
        lr_scheduler: makes its learning-rate scheduler, or None.
        seed: of the run.
        recompute: which microbatches of a batch are recomputed.
        first_parameter: index of its first trained parameter in the unsplit model.
        pops: names and numbers of the skip connections that end here.
        stashes: of those that begin here.
        state: of its optimizer and scheduler, from an earlier run, or None.
    """

    index: int
    layers: nn.Sequential
    first_layer: int
    random_layers: frozenset[int]
    edits_input: bool
    optimizer: OptimizerFactory
    lr_scheduler: LRSchedulerFactory | None
    seed: int
    recompute: Recompute = "never"
    first_parameter: int = 0
    pops: Mapping[Name, int] = field(default_factory=dict)
    stashes: Mapping[Name, int] = field(default_factory=dict)
    state: dict[str, Any] | None = None

    def build(self, device: torch.device) -> "Stage":
        """Return the stage, on its device."""
        return Stage(self, device)


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


class Stage:
    """Runs the passes of one stage on the weight version that each names.

    Args:
        spec: what it is made of.
        device: where it computes.
    """

    def __init__(self, spec: StageSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.versions = WeightVersions(spec.layers.to(device), spec.optimizer, spec.lr_scheduler)
        if spec.state is not None:
            self._load(spec.state)
        self._pending: dict[int, _Pending] = {}
        self._watch_backward = False
        self.most_pending = 0
        self.held: Held | None = None
        self.reducer: Reducer | None = None  # on several workers, in training

    def prepare(self, buffers: int, training: bool) -> None:
        """Make ready for a run that needs ``buffers`` weight buffers."""
        self.versions.prepare(buffers, training)
        self._pending.clear()
        self._watch_backward = bool(self.spec.random_layers)
        self.most_pending = 0

    def infer(self, x: Flow, microbatch: int) -> Flow:
        """Return the output for ``x``, keeping nothing."""
        with torch.no_grad():
            return self._run(0, x, microbatch)

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
        if self.spec.index:
            for number, tensor in enumerate(differentiable(x.main)):
                tensor.requires_grad_().register_hook(partial(_take, gradients.main, number))
            for skip, tensor in x.skips.items():
                if differentiable(tensor):
                    tensor.requires_grad_().register_hook(partial(_take, gradients.skips, skip))
        wanted = () if target is None else target.target
        with (
            self._following(microbatch, (*x, wanted)),
            torch.no_grad() if recompute else nullcontext(),
        ):
            output = self._compute(x, microbatch, buffer, target)
        if self.held and not recompute:
            self.held.keep(microbatch, tuple(output))
        self._pending[microbatch] = _Pending(x, None if recompute else output, target, gradients)
        self.most_pending = max(self.most_pending, len(self._pending))
        return Flow(*tree_map(Tensor.detach, tuple(output)))

    def recompute(self, microbatch: int, buffer: int) -> bool:
        """Run a forward again if its graph was not kept; return whether it was run."""
        pending = self._pending[microbatch]
        if pending.output is not None:
            return False
        again = self.held.follow(microbatch, again=True) if self.held else nullcontext()
        with again, buffers_untouched(self.versions.modules[buffer]):
            output = self._compute(pending.input, microbatch, buffer, pending.target)
        if self.held:
            self.held.keep(microbatch, tuple(output), again=True)
        self._pending[microbatch] = pending._replace(output=output)
        return True

    def backward(
        self, microbatch: int, buffer: int, update: int, gradients: FlowGradients | None
    ) -> FlowGradients:
        """Add the microbatch's gradients to ``update``'s sum.

        Args:
            microbatch: one whose forward is pending, and recomputed if need be.
            buffer: the weight buffer that its graph reads.
            update: the update that sums these gradients.
            gradients: of the output; None on the last stage.

        Returns:
            Likewise those of the input, for the stages that it came from.

        Raises:
            ValueError: a layer draws random numbers in its backward.
        """
        _, output, _, arrived = self._pending.pop(microbatch)
        assert output is not None, "recompute() comes first"
        self.versions.accumulate(buffer, update)
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

    def state(self) -> dict[str, Any]:
        """Return the optimizer's and the scheduler's state."""
        optimizer, scheduler = self.versions.optimizer, self.versions.lr_scheduler
        return {
            "optimizer": optimizer.state_dict() if optimizer else None,
            "lr_scheduler": scheduler.state_dict() if scheduler else None,
        }

    def to_spec(self) -> StageSpec:
        """Return what makes this stage again, as it stands now, elsewhere."""
        return replace(self.spec, layers=self.versions.newest, state=self.state())

    def _load(self, state: dict[str, Any]) -> None:
        if self.versions.optimizer and state["optimizer"]:
            self.versions.optimizer.load_state_dict(state["optimizer"])
        if self.versions.lr_scheduler and state["lr_scheduler"]:
            self.versions.lr_scheduler.load_state_dict(state["lr_scheduler"])

    def _following(self, microbatch: int, given: Tree) -> AbstractContextManager[Any]:
        """Return a context in which what a forward keeps is counted, if anybody asks.

        ``given``, the input and the target, stays until the backward.
        """
        if self.held is None:
            return nullcontext()
        self.held.keep(microbatch, given)
        return self.held.follow(microbatch)

    def _compute(self, x: Flow, microbatch: int, buffer: int, target: Target | None) -> Flow:
        output = self._run(buffer, x, microbatch)
        if target is None:
            return output
        loss = target.loss(output.main, target.target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TypeError("the loss must return a tensor with one number for each microbatch")
        return Flow(loss * target.weight if target.weight != 1.0 else loss, {})

    def _run(self, buffer: int, x: Flow, microbatch: int) -> Flow:
        main = self._own(x.main)
        spec = self.spec
        if not spec.pops and not spec.stashes:
            return Flow(self._layers(buffer, main, microbatch), {})
        with carrying({name: x.skips[n] for name, n in spec.pops.items()}) as carried:
            main = self._layers(buffer, main, microbatch)
        return Flow(main, {n: carried.outgoing[name] for name, n in spec.stashes.items()})

    def _layers(self, buffer: int, x: Tree, microbatch: int) -> Tree:
        module = self.versions.modules[buffer]
        if not self.spec.random_layers:
            return module(x)
        for number, layer in enumerate(module, start=self.spec.first_layer):
            if number in self.spec.random_layers:
                with Seeded(layer_seed(self.spec.seed, number, microbatch), self.device):
                    x = layer(x)
            else:
                x = layer(x)
        return x

    def _own(self, x: Tree) -> Tree:
        """Return an input that the layers may edit: neither the sender's tensor nor a leaf."""
        return tree_map(torch.clone, x) if self.spec.edits_input else x


def _take(gradients: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    # An alias: autograd copies the gradient of a leaf if somebody else holds the tensor itself.
    gradients[number] = gradient.detach()
