"""A recorded model beside the unsplit one: outputs, buffers and all gradients, to the bit."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.layers.buffers import named_buffers
from pipekit.layers.modes import set_mode
from pipekit.layers.python_state import state_untouched
from pipekit.layers.weights import KeptWeights, weights_untouched
from pipekit.partition.recorded.extra_state import owners
from pipekit.partition.recorded.recorded_model import RecordedModel, Trial
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import encode, leaves, tensors
from pipekit.partition.recording.untouched import left_as_it_was
from pipekit.trees import Tree

SEED = 20_240_229


@dataclass(frozen=True)
class _Outcome:
    """What one run left: tensors by what they are called in messages.

    ``None`` stands for a gradient that nothing reached.
    """

    tensors: dict[str, Tensor | None] = field(default_factory=dict)

    def first_difference(self, other: "_Outcome") -> str | None:
        """Return the name of the first tensor that differs, in the order in which they were put."""
        for name in dict.fromkeys([*self.tensors, *other.tensors]):
            if name not in self.tensors or name not in other.tensors:
                return name
            if not _equal(self.tensors[name], other.tensors[name]):
                return name
        return None


def verify(recorded: RecordedModel) -> list[float]:
    """Compare every layer as a stage of its own with the unsplit model, in both modes.

    Both run on batches of other sizes than any recording had, with equal random numbers.  Outputs,
    buffers, the gradients of all parameters and of floating-point inputs must be equal to
    the bit, and the names must be the model's.  In training, floating-point inputs are tried with
    and without gradients: without, as most batches come, a module may do something else (weights
    in a reentrant checkpoint get no gradient).  Model and generators are left as they were.

    Args:
        recorded: the model as layers, and the batches.

    Returns:
        The seconds that each layer's forward took in training mode, once.

    Raises:
        NotRecordable: the first tensor that differs, by name, and what to do.
    """
    model = recorded.model
    stages = recorded.stages([1] * len(recorded))
    _require_names(model, stages)
    seconds = [0.0] * len(stages)
    with left_as_it_was(model):
        for training in (True, False):
            for trial in recorded.trials:
                floats = any(tensor.is_floating_point() for tensor in tensors(trial.batch))
                for tracked in (False, True) if training and floats else (True,):
                    _compare(recorded, stages, trial, training, tracked, seconds)
    return seconds


def _compare(
    recorded: RecordedModel,
    stages: list[Any],
    trial: Trial,
    training: bool,
    tracked: bool,
    seconds: list[float],
) -> None:
    """Refuse stages that do not do what the model does with a batch; note their seconds."""
    model, batch = recorded.model, trial.batch
    mode = f"in {'training' if training else 'evaluation'} mode, with {trial.sizes}"
    mode += "" if tracked else " and inputs that need no gradient"
    set_mode(model, training, recorded.kept)
    with _said("the unsplit model fails", mode, recorded.advice):
        whole = _run_whole(model, batch, training, tracked)
    for stage in stages:
        set_mode(stage, training, recorded.kept)
    with _said("the model cut into stages fails", mode, recorded.advice):
        cut = _run_stages(model, stages, batch, training, tracked, seconds)
    name = whole.first_difference(cut)
    if name is None:
        return
    set_mode(model, training, recorded.kept)
    again = whole.first_difference(_run_whole(model, batch, training, tracked))
    if again is not None:
        raise NotRecordable(
            f"two runs of the unsplit model differ {mode}, first in {again}: it keeps state in "
            f"Python between forwards, or an operator of it is not deterministic"
        )
    raise NotRecordable(
        f"the model cut into stages is not the unsplit one {mode}: the first tensor that differs "
        f"is {name}; {recorded.advice}"
    )


@contextmanager
def _said(what: str, mode: str, advice: str) -> Iterator[None]:
    """Refuse a model that fails with a batch made from the example, whatever it raises."""
    try:
        yield
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise NotRecordable(f"{what} {mode} ({type(error).__name__}: {said}); {advice}") from error


def _run_whole(model: nn.Module, batch: Any, training: bool, tracked: bool) -> _Outcome:
    inputs: list[Tensor] = []
    sample = _copied(batch, tracked, inputs)
    outcome = _Outcome()
    with _fresh(model, [model]) as weights, torch.set_grad_enabled(training):
        output = batches.call(model, sample)
        _put_forward(outcome, output, model, [model])
        if training:
            roots = [tensor for tensor in tensors(output) if tensor.requires_grad]
            if roots:
                torch.autograd.backward(roots, _cotangents(roots))
            _put_gradients(outcome, model, inputs)
        _put_edited(outcome, model, weights)
    return outcome


def _copied(batch: Any, tracked: bool, inputs: list[Tensor]) -> Any:
    """Return a copy of a batch; if gradients are tracked, ``inputs`` gets what they come to."""
    if not tracked:
        return batches.plain_copy(batch)
    return batches.differentiable_copy(batch, inputs.append)


def _run_stages(
    model: nn.Module,
    stages: list[Any],
    batch: Any,
    training: bool,
    tracked: bool,
    seconds: list[float],
) -> _Outcome:
    """Run stages one by one; between them go detached tensors forth and their gradients back."""
    inputs: list[Tensor] = []
    tree: Tree = _copied(batch, tracked, inputs)
    outcome = _Outcome()
    cuts: list[_Cut] = []
    with _fresh(model, stages) as weights, torch.set_grad_enabled(training):
        for number, stage in enumerate(stages):
            if number:
                cuts.append(_Cut(tensors(tree), training))
                taken = tuple(cuts[-1].received)
                tree = taken[0] if isinstance(tree, Tensor) else taken
            start = time.perf_counter()
            tree = stage(tree)
            if training:
                seconds[number] = time.perf_counter() - start
        _put_forward(outcome, tree, model, stages)
        if training:
            roots = [tensor for tensor in tensors(tree) if tensor.requires_grad]
            if roots:
                torch.autograd.backward(roots, _cotangents(roots))
            for cut in reversed(cuts):
                cut.backward()
            _put_gradients(outcome, model, inputs)
        _put_edited(outcome, model, weights)
    return outcome


class _Cut:
    """Tensors that one stage made, and what the next one received for them."""

    def __init__(self, made: list[Tensor], training: bool) -> None:
        self._made = made
        self._gradients: dict[int, Tensor] = {}
        self.received = [tensor.detach() for tensor in made]
        for number, tensor in enumerate(self.received):
            if training and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_().register_hook(partial(self._take, number))

    def _take(self, number: int, gradient: Tensor) -> None:
        # As autograd computed it: a leaf's .grad may have other strides, hence other roundings.
        self._gradients[number] = gradient.detach()

    def backward(self) -> None:
        """Run the backward of the stage that made the tensors, from the gradients that came."""
        reached = [n for n in sorted(self._gradients) if self._made[n].requires_grad]
        if reached:
            roots = [self._made[n] for n in reached]
            torch.autograd.backward(roots, [self._gradients[n] for n in reached])
        self._made, self._gradients = [], {}


def _require_names(model: nn.Module, stages: list[Any]) -> None:
    held: Mapping[str, Any] = {}
    for stage in stages:
        held = {**held, **stage.state_dict(keep_vars=True), **dict(owners(stage))}
    for name, entry in {**model.state_dict(keep_vars=True), **dict(owners(model))}.items():
        if held.get(name) is entry:
            continue
        if isinstance(entry, nn.Module):  # extra state may be another object each time
            raise NotRecordable(
                f"{type(entry).__name__} has extra state (get_extra_state), {name!r}, and no stage "
                f"has that module whole, as its forward is recorded: make it part of a block by "
                f"blocks=[...], with way='record', or let a module within a block have the state"
            )
        raise NotRecordable(f"no stage has {name!r} of the model: please report this")


def _cotangents(roots: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in roots]


def _put_forward(
    outcome: _Outcome, output: Any, model: nn.Module, parts: Sequence[nn.Module]
) -> None:
    template = encode(output, lambda leaf: leaf)
    outcome.tensors[f"the structure of the output ({type(output).__name__})"] = None
    for number, leaf in enumerate(leaves(template)):
        if isinstance(leaf, Tensor):
            outcome.tensors[f"tensor {number} of the output"] = leaf.detach().clone()
    held = {name: buffer for part in parts for name, buffer in named_buffers(part).items()}
    for name in named_buffers(model):
        outcome.tensors[f"the buffer {name!r}"] = held[name].detach().clone()


def _put_gradients(outcome: _Outcome, model: nn.Module, inputs: list[Tensor]) -> None:
    for name, parameter in model.named_parameters():
        outcome.tensors[f"the gradient of {name!r}"] = parameter.grad
    for number, tensor in enumerate(inputs):
        outcome.tensors[f"the gradient of floating-point input {number}"] = tensor.grad


def _put_edited(outcome: _Outcome, model: nn.Module, weights: KeptWeights) -> None:
    """Put the weights that the forward has edited, be it to what they were."""
    for name in dict.fromkeys([*weights.edited(), *weights.rebound()]):
        outcome.tensors[f"the weight {name!r}, edited in the forward"] = (
            model.get_parameter(name).detach().clone()
        )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.is_sparse or other.is_sparse:
        return one.is_sparse == other.is_sparse and _equal(one.to_dense(), other.to_dense())
    return torch.equal(one, other) or (
        torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


@contextmanager
def _fresh(model: nn.Module, parts: Sequence[nn.Module]) -> Iterator[KeptWeights]:
    """Run parts of a model with seeded generators and no gradients; put back what is edited.

    Yields:
        The model's weights, as they were.
    """
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    torch.manual_seed(SEED)
    try:
        with state_untouched(nn.ModuleList(parts)), weights_untouched(model) as weights:
            yield weights
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
