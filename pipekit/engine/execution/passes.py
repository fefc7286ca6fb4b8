"""The passes of a stage, and the tensors that wait between them."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipekit.engine.execution.pipeline_io import StageGradients, StageIO, Target
from pipekit.layers.pass_state import autocast, during
from pipekit.layers.read_state import ReadAgain, ReadState
from pipekit.layers.seeded import DrawingAgain, Seed, Seeded, layer_seed
from pipekit.layers.skips import carrying
from pipekit.layers.split_backward import WeightBackward, backward_input
from pipekit.losses.checks import require_loss, require_no_weights
from pipekit.partition.partition import PartitionStage
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step
from pipekit.trees import Tree, differentiable, leaves, tensors_in, tree_map


@dataclass(frozen=True, kw_only=True)
class PassConfig:
    """How the passes of a stage are run."""

    part: PartitionStage
    differentiates_batch: bool = False  # whether the first stage gives gradients of its input, too
    seed: Seed | None = 0  # None: layers draw from torch's default generators, in their order
    autocast: torch.dtype | None = None  # of operators where that is safe
    recompute: Recompute = "never"

    def build(self, device: torch.device) -> "Passes":
        return InferencePasses(self, [self.part.module.to(device).eval()], device)


class _Pending(NamedTuple):
    """A microbatch between its forward and its backward.

    ``gradients`` gets those of the input, as autograd computed them: a leaf's ``.grad`` may have
    other strides, and strides change how later sums are rounded.
    """

    input: StageIO
    output: StageIO | None  # None: to be recomputed
    target: Target | None
    gradients: StageGradients
    read: ReadAgain | None


class Passes:
    """Runs the passes of one stage, and keeps each microbatch's tensors between its passes.

    It is a :class:`StageRuntime`.  ``modules`` are the stage's layers, once for each weight slot;
    ``parameters`` the trained ones of each slot, none in inference.  Their owner may change them.
    """

    def __init__(
        self,
        config: PassConfig,
        modules: Sequence[nn.Sequential],
        device: torch.device,
        parameters: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        self._config, self._part, self.recompute = config, config.part, config.recompute
        self._differentiates_input = config.part.index > 0 or config.differentiates_batch
        self._modules, self._device, self._parameters = modules, device, parameters
        self._first_microbatch = 0  # of the run: the key of random numbers counts all runs
        self._pending: dict[int, _Pending] = {}
        self._pending_weights: dict[int, WeightBackward | None] = {}
        # What a forward reads that is run again, beside its input and its weights.
        self._read_states: dict[nn.Module, ReadState] = {}
        self._drew = False  # whether any layer has drawn random numbers
        self._loss_checked = False
        self._by_branches: bool | None = None  # None: no split backward has been compared yet

    def begin(self, first_microbatch: int) -> None:
        """Begin a run behind so many microbatches; drop the tensors of one that failed."""
        self._first_microbatch = first_microbatch
        self._pending.clear()
        self._pending_weights.clear()
        self._read_states.clear()
        self._loss_checked = False

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        differentiated = differentiable(tuple(x)) if self._differentiates_input else ()
        for tensor in differentiated:
            tensor.requires_grad_()
        pending = _Pending(x, None, target, StageGradients({}, {}), None)
        if step.recomputed(self.recompute):
            module = self._modules[step.slot]
            if module not in self._read_states:
                self._read_states[module] = ReadState(module, self._part.edited_buffers)
            pending = pending._replace(read=self._read_states[module].now())
            with torch.no_grad(), during(checkpointing=True):
                output = self._compute(step, x, target)
            for tensor in differentiated:  # of hooks that layers have given it, of no graph
                tensor._backward_hooks = None
        else:
            output = self._compute(step, x, target)
            self._watch_input(x, pending.gradients)
            pending = pending._replace(output=output)
        self._pending[step.task.microbatch] = pending
        return StageIO(tree_map(Tensor.detach, output.main), tree_map(Tensor.detach, output.skips))

    def run_again(self, step: Step) -> StageIO:
        microbatch = step.task.microbatch
        pending = self._pending[microbatch]
        assert pending.read is not None
        with pending.read(), during(recomputing=True):
            output = self._compute(step, pending.input, pending.target)
        self._watch_input(pending.input, pending.gradients)
        self._pending[microbatch] = pending._replace(output=output, read=None)
        return output

    def loss(self, microbatch: int) -> Tensor:
        """Return the loss of a pending microbatch, on the last stage in training."""
        output = self._pending[microbatch].output
        assert output is not None, "run_again() comes first"
        loss: Tensor = output.main
        return loss

    def waiting(self, microbatch: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return a pending microbatch's tensors, and those that are parts of its batch.

        They are its input, its output if its graph is kept, and the target.
        """
        pending = self._pending.get(microbatch)
        if pending is None:
            return [], []
        target = pending.target.target if pending.target else ()
        received, read = (pending.input, ()) if self._part.index else ((), pending.input)
        return leaves((received, pending.output)), tensors_in((read, target))

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        microbatch, slot = step.task.microbatch, step.slot
        split = step.task.op is Op.BACKWARD_INPUT
        pending = self._pending.pop(microbatch)
        begin, arrived = self._begin_backward(pending, slot, gradients), pending.gradients
        ends: list[Tensor] = []  # of the first part of a split backward: an earlier stage waits
        if split and self._differentiates_input:
            ends += dict.fromkeys(t for t in leaves(tuple(pending.input)) if t.requires_grad)
        if split:
            ends += [self._parameters[slot][place] for place in self._part.copies.values()]
        del pending  # what no graph needs is free meanwhile
        with DrawingAgain(self._device) if self._drew else nullcontext():
            if split:
                self._pending_weights[microbatch] = backward_input(*begin, ends) if begin else None
            elif begin:
                torch.autograd.backward(*begin)
        for number, place in self._part.copies.items():  # none of these stays here
            copy = self._parameters[slot][place]
            if copy.grad is not None:
                arrived.skips[number], copy.grad = copy.grad, None
        # By number: autograd may have come to the last one first.
        return StageGradients(dict(sorted(arrived.main.items())), arrived.skips)

    def backward_weight(self, step: Step) -> None:
        if rest := self._pending_weights.pop(step.task.microbatch):
            with DrawingAgain(self._device) if self._drew else nullcontext():
                if self._by_branches is None:
                    self._by_branches = rest.is_exact()
                rest.run(self._by_branches)

    def _begin_backward(
        self, pending: _Pending, slot: int, gradients: StageGradients | None
    ) -> tuple[list[Tensor], list[Tensor] | None] | None:
        """Return where a backward begins and the gradients there; None: nothing is to be done."""
        output = pending.output
        assert output is not None, "run_again() comes first"
        if gradients is None:
            return ([output.main], None) if output.main.requires_grad else None
        outputs = differentiable(output.main)
        pairs = [(outputs[n], g) for n, g in gradients.main.items()]
        originals = self._part.originals
        for n, gradient in gradients.skips.items():
            # What later stages have added up comes to a weight before the stage's own gradients do.
            shared = self._parameters[slot][originals[n]] if n in originals else output.skips[n]
            pairs.append((shared, gradient))
        reached = [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]
        return ([t for t, _ in reached], [g for _, g in reached]) if reached else None

    def _compute(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        with autocast(self._device, self._config.autocast):
            output = self._run(step, x)
            if target is None:
                return output
            loss = target.loss(output.main, target.target)
        require_loss(loss)
        if torch.is_grad_enabled() and not self._loss_checked:
            require_no_weights(loss, tensors_in((output.main, target.target)))
            self._loss_checked = True
        return StageIO(loss * target.weight if target.weight != 1.0 else loss, {})

    def _run(self, step: Step, x: StageIO, keep: bool = True) -> StageIO:
        part, main = self._part, x.main
        if part.edits_input:  # it may be neither the sender's tensor nor a leaf
            main = tree_map(torch.clone, main)
        if not part.pops and not part.stashes:
            return StageIO(self._layers(step, main), {})
        # Of a skip that is None nothing came.
        with carrying({name: x.skips.get(n) for name, n in part.pops.items()}) as carried:
            if not keep:
                x.skips.clear()  # whoever pops a skip has the last of it
            main = self._layers(step, main)
        stashed = {n: carried.stashed(name) for name, n in part.stashes.items()}
        return StageIO(main, {n: skip for n, skip in stashed.items() if skip is not None})

    def _layers(self, step: Step, x: Tree) -> Tree:
        seed, layers = self._config.seed, self._modules[step.slot]
        if seed is None:
            for layer in layers:
                x = layer(x)
            return x
        microbatch = self._first_microbatch + step.task.microbatch
        with Seeded(0, self._device) as seeded:
            for number, layer in enumerate(layers, start=self._part.first_layer):
                seeded.seed(partial(layer_seed, seed, number, microbatch))
                x = layer(x)
        self._drew = self._drew or seeded.drew
        return x

    def _watch_input(self, x: StageIO, gradients: StageGradients) -> None:
        """Take the gradients of an input, as the hooks leave them that layers have given it."""
        if self._differentiates_input:
            for number, tensor in enumerate(differentiable(x.main)):
                tensor.register_hook(partial(_take, gradients.main, number))
            for skip, tensor in x.skips.items():
                if differentiable(tensor):
                    tensor.register_hook(partial(_take, gradients.skips, skip))


class InferencePasses(Passes):
    """Forwards of which nothing is kept, since no backward follows."""

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        with torch.no_grad(), autocast(self._device, self._config.autocast):
            return self._run(step, x, keep=False)


def _take(gradients: dict[int, Tensor], number: int, gradient: Tensor | None) -> None:
    if gradient is not None:  # as an autograd function of the user's may return
        # An alias: autograd copies the gradient of a leaf if somebody else holds the tensor itself.
        gradients[number] = gradient.detach()
