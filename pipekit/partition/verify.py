"""A recorded model beside the unsplit one: outputs, buffers and all gradients, to the bit."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit.devices import CPU
from pipekit.layers.edited_tensors import weights_untouched
from pipekit.layers.module_state import named_buffers, set_mode, state_untouched
from pipekit.layers.pass_state import rounding
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.recorded_model import RecordedModel, Trial
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.stage import RecordedStage, owners
from pipekit.partition.recording.templates import leaves, tensors

SEED = 20_240_229
_ADVICE = (
    "name a module around the part in question as a block by blocks=[...]; for transformers try "
    "attn_implementation='eager' and use_cache=False, for torch's TransformerEncoder "
    "enable_nested_tensor=False; torch.utils.checkpoint needs use_reentrant=False"
)

_GRADIENT = "the gradient of {!r}"
_Outcome = dict[str, Tensor | None]  # by names for messages; None: a gradient that nothing reached
_Parts = Sequence[nn.Module]  # the model alone, or its stages


class _Case(NamedTuple):
    """A batch, what counts as equal, the mode, and whether inputs track gradients."""

    trial: Trial
    equal: Callable[[Tensor | None, Tensor | None], bool]
    training: bool
    tracked: bool

    @property
    def text(self) -> str:
        mode = f"in {'training' if self.training else 'evaluation'} mode, with {self.trial.sizes}"
        return mode + ("" if self.tracked else " and inputs that need no gradient")

    def difference(self, one: _Outcome, other: _Outcome) -> str | None:
        for name in dict.fromkeys([*one, *other]):
            if name not in one or name not in other or not self.equal(one[name], other[name]):
                return name
        return None


def verify(recorded: RecordedModel) -> RecordedModel:
    """Compare every layer as a stage of its own with the unsplit model, in both modes; return it.

    Both run on a batch of other sizes than any recording had, with equal random numbers.  Outputs,
    buffers, the gradients of all parameters and of floating-point inputs must be equal to
    the bit, and the names must be the model's; the first tensor that differs is refused by name.
    Floating-point inputs are tried with and without gradients: without, a module may do something
    else (weights in a reentrant checkpoint get no gradient).  A model that was told that it is
    traced is tried with masks that hide something, to the bit, and with masks that do not, to
    rounding: untraced, it then computes without them.
    """
    stages = recorded.stages()
    _require_names(recorded.model, stages)
    with batches.left_as_it_was(recorded.model):
        for case in _cases(recorded):
            _compare(recorded, stages, case)
    return recorded


def _cases(recorded: RecordedModel) -> Iterator[_Case]:
    trials: list[Any] = [(recorded.trial, _equal)]
    if recorded.traced:
        sizes, batch = recorded.trial
        padded, whole = (batches.with_masks(batch, padded) for padded in (True, False))
        has_masks = not all(map(torch.equal, tensors(padded), tensors(whole)))
        trials = [
            (Trial(f"{sizes}, some of them masked", padded), _equal if has_masks else _near),
            (Trial(f"{sizes}, nothing masked", whole), _near),
        ]
    floats = any(tensor.is_floating_point() for tensor in tensors(recorded.trial.batch))
    for trial, equal in trials:
        for tracked in (False, True) if floats else (True,):
            yield _Case(trial, equal, True, tracked)
        yield _Case(trial, equal, False, True)


def _compare(recorded: RecordedModel, cut: _Parts, case: _Case) -> None:
    model, whole, mode = recorded.model, [recorded.model], case.text

    def run(parts: _Parts) -> _Outcome:
        for part in parts:
            set_mode(part, case.training, recorded.kept)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the trial is not as the example was
            return _outcome(recorded, parts, case)

    with _said("the unsplit model fails", mode):
        try:
            expected = run(whole)
        except RuntimeError as error:
            if case.training and case.tracked and batches.LEAVES_ALONE in str(error):
                return
            raise
    with _said("the model cut into stages fails", mode), _dropped_if_equal(model, expected, case):
        found = run(cut)
    if case.difference(expected, found) is None:
        return
    expected, found = run(whole), run(cut)  # anew, with the gradients that were dropped
    name = case.difference(expected, found)
    if name is None:
        return
    if again := case.difference(expected, run(whole)):
        raise NotRecordable(
            f"two runs of the unsplit model differ {mode}, first in {again}: it keeps state in "
            f"Python between forwards, or an operator of it is not deterministic"
        )
    raise NotRecordable(
        f"the model cut into stages is not the unsplit one {mode}: the first tensor that differs "
        f"is {name}; {_ADVICE}"
    )


@contextmanager
def _dropped_if_equal(model: nn.Module, expected: _Outcome, case: _Case) -> Iterator[None]:
    """Drop each gradient that is as expected, and the expected one: not all are there twice."""

    def compare(key: str, parameter: Tensor) -> None:
        if expected.get(key) is not None and case.equal(expected[key], parameter.grad):
            expected[key] = parameter.grad = None

    with ExitStack() as hooks:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = partial(compare, _GRADIENT.format(name))
                hooks.enter_context(parameter.register_post_accumulate_grad_hook(hook))
        yield


@contextmanager
def _said(what: str, mode: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise NotRecordable(f"{what} {mode} ({type(error).__name__}: {said}); {_ADVICE}") from error


def _outcome(recorded: RecordedModel, parts: _Parts, case: _Case) -> _Outcome:
    model = recorded.model
    kept = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in kept:
        parameter.grad = None
    inputs: list[Tensor] = []  # each gets its gradient
    sample = batches.copied(case.trial.batch, tracked=inputs if case.tracked else None)
    outcome: _Outcome = {}
    torch.manual_seed(SEED)
    try:
        with (
            state_untouched(nn.ModuleList(parts)),
            weights_untouched(model, recorded.edited) as weights,
            torch.set_grad_enabled(case.training),
        ):
            output = _run(parts, sample)
            outcome[f"the structure of the output ({type(output).__name__})"] = None
            for number, leaf in enumerate(leaves(output)):
                if isinstance(leaf, Tensor):
                    outcome[f"tensor {number} of the output"] = leaf.detach().clone()
            held = {name: buffer for part in parts for name, buffer in named_buffers(part).items()}
            for name in named_buffers(model):
                outcome[f"the buffer {name!r}"] = held[name].detach().clone()
            if case.training:
                roots = [tensor for tensor in tensors(output) if tensor.requires_grad]
                generator = torch.Generator().manual_seed(SEED)
                drawn = partial(torch.randn, generator=generator, device=CPU)
                seeds = [drawn(t.shape, dtype=t.dtype).to(t.device) for t in roots]
                if roots:
                    torch.autograd.backward(roots, seeds)
                for name, parameter in model.named_parameters():
                    outcome[_GRADIENT.format(name)] = parameter.grad
                for number, tensor in enumerate(inputs):
                    outcome[f"the gradient of floating-point input {number}"] = tensor.grad
            for name in dict.fromkeys([*weights.edited(), *weights.rebound()]):
                weight = model.get_parameter(name).detach().clone()
                outcome[f"the weight {name!r}, edited in the forward"] = weight
    finally:
        for parameter, gradient in kept.items():
            parameter.grad = gradient
    return outcome


def _run(parts: _Parts, tree: Any) -> Any:
    """Return what parts give one after another."""
    for number, part in enumerate(parts):
        if number:
            received = _Cut.apply(*tensors(tree))
            for tensor in received if torch.is_grad_enabled() else ():
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.requires_grad_()  # as stages have it, though the maker had it not
            tree = received[0] if isinstance(tree, Tensor) else received
        tree = part(tree) if isinstance(part, RecordedStage) else batches.call(part, tree)
    return tree


class _Cut(torch.autograd.Function):
    """What goes from stage to stage: all gradients are there when the earlier backward begins."""

    @staticmethod
    def forward(ctx: Any, *made: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients


def _require_names(model: nn.Module, stages: list[RecordedStage]) -> None:
    def named(module: nn.Module) -> dict[str, Any]:
        # In place of extra state, which may be another object each time, the modules with it.
        return {**module.state_dict(keep_vars=True), **dict(owners(module))}

    held = dict(chain.from_iterable(named(stage).items() for stage in stages))
    for name, entry in named(model).items():
        if held.get(name) is entry:
            continue
        if isinstance(entry, nn.Module):
            raise NotRecordable(
                f"{type(entry).__name__} has extra state (get_extra_state), {name!r}, and no stage "
                f"has that module whole, as its forward is recorded: make it part of a block by "
                f"blocks=[...], or let a module within a block have the state"
            )
        raise NotRecordable(f"no stage has {name!r} of the model: please report this")


def _near(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or not one.is_floating_point() or one.shape != other.shape:
        return _equal(one, other)
    bound = rounding(one.dtype) * one.abs().max() if one.numel() else 0.0
    return bool(((one - other).abs() <= bound).all())


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.is_sparse or other.is_sparse:
        return one.is_sparse == other.is_sparse and _equal(one.to_dense(), other.to_dense())
    return torch.equal(one, other) or torch.allclose(one, other, 0, 0, equal_nan=True)
