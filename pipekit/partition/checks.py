"""Whether a model can be cut and trained as somebody wants it; each error says the remedy."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipekit.choices import require_choice
from pipekit.host.user_frames import warn
from pipekit.layers.edited_tensors import OperatorMode, memory_of
from pipekit.layers.module_state import buffers_untouched, named_buffers
from pipekit.layers.pass_state import rounding
from pipekit.partition.partition import require_unshared
from pipekit.partition.probe import Probe
from pipekit.trees import Tree, leaves, refill


def require_balance(balance: Sequence[int] | str, model: nn.Sequential, stages: int) -> None:
    """Raise ValueError unless ``balance`` is "auto" or splits the model into ``stages`` stages."""
    if len(model) < stages:
        raise ValueError(
            f"the schedule has {stages} stages and the model only {len(model)} layers: use at "
            f"most {len(model)} stages"
        )
    if isinstance(balance, str):
        require_choice("balance", balance, ["auto"])
        return
    if not hasattr(balance, "__len__"):
        raise ValueError(
            f"balance must be 'auto', a Plan, or how many layers each stage has, as [2, 3], not "
            f"{balance!r}"
        )
    if len(balance) != stages:
        raise ValueError(
            f"balance {list(balance)} is for {len(balance)} stages and the schedule has {stages}"
        )
    if any(not isinstance(count, Integral) or count < 1 for count in balance):
        raise ValueError(f"balance {list(balance)}: every stage needs at least one layer")
    if sum(balance) != len(model):
        raise ValueError(
            f"balance {list(balance)} sums to {sum(balance)} layers and the model has {len(model)}"
        )
    require_unshared(model, balance)


def require_data(model: nn.Module, instead: str = "") -> None:
    """Raise ValueError if a model has tensors without data; ``instead`` is one more remedy."""
    if lazy := [name for name, each in model.state_dict(keep_vars=True).items() if is_lazy(each)]:
        raise ValueError(
            f"the model has no {lazy[0]!r} before its first forward (nn.LazyLinear, say): call it "
            f"on a batch before, model(example)"
        )
    if any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers())):
        raise ValueError(
            f"the model has tensors on device 'meta' without data, and cannot be run: build it on "
            f"another device, or load its weights first, load_state_dict(..., assign=True){instead}"
        )


def require_no_tensor_hooks(model: nn.Module) -> None:
    """Raise ValueError if a parameter has hooks of its own: no copy of it has them."""
    for name, parameter in model.state_dict(keep_vars=True).items():
        if not isinstance(parameter, Tensor):  # a module's extra state
            continue
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"the parameter {name!r} has a hook (register_hook or "
                f"register_post_accumulate_grad_hook), which the stages' copies of it would not "
                f"have: remove it, and let the function that makes the optimizer give that one a "
                f"hook, optimizer.register_step_pre_hook(...), which sees all gradients"
            )


def require_ties_on_one_device(
    stages: Sequence[nn.Sequential], devices: Sequence[torch.device]
) -> None:
    """Raise ValueError if stages on different devices share a parameter."""
    home: dict[Tensor, torch.device] = {}
    for stage, device in zip(stages, devices, strict=True):
        for name, parameter in stage.named_parameters():
            other = home.setdefault(parameter, device)
            if other != device:
                raise ValueError(
                    f"the parameter {name!r} is shared by stages on {other} and {device}: put them "
                    f"on one device, or train with pipekit.Pipeline, which keeps a copy on each"
                )


@contextmanager
def original_unused(original: nn.Module) -> Iterator[None]:
    """Refuse forwards of a copy that read a trained weight of the original, or edit its buffers.

    A lambda, a replaced forward or a hook may lead back to a module of the original.  Frozen
    weights and buffers that stay as they are may be read: they are equal in both.
    """
    with buffers_untouched(original), OriginalUnread(original, refusal=_of_a_forward):
        yield
        for name, buffer in original.named_buffers():
            if buffer._version:  # it is a new copy, for as long as this lasts
                raise ValueError(_of_a_forward(f"edits the buffer {name!r}"))


class OriginalUnread(OperatorMode):
    """Looks for the trained weights of a model, and some buffers, among operators' arguments.

    ``refused`` is the error that it has raised, which a user's code may have caught.
    """

    def __init__(
        self,
        original: nn.Module,
        buffers: Iterable[str] = (),
        refusal: Callable[[str], str] = str,
    ) -> None:
        super().__init__()
        trained = [(name, p) for name, p in original.named_parameters() if p.requires_grad]
        self._names = {memory_of(weight): f"the weight {name!r}" for name, weight in trained}
        own = named_buffers(original)  # in which another layer than the copied one may be
        for name in own.keys() & {*buffers}:
            self._names[memory_of(own[name])] = f"the buffer {name!r}"
        self._names.pop(0, None)
        self._refusal = refusal
        self.refused: ValueError | None = None

    def look_at(self, func: Callable[..., Any], tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if name := self._names.get(memory_of(tensor)):
                self.refused = ValueError(self._refusal(f"reads {name}"))
                raise self.refused


def warn_of_mixed_rows(first: Tree, second: Tree, evaluate: Callable[[Tree], Probe]) -> None:
    """Warn of a model that in evaluation mode gives other rows for two microbatches together.

    Outputs without rows tell nothing, nor does a model that draws random numbers.
    """
    pairs = zip(leaves(first), leaves(second), strict=True)
    both = refill(first, [one if one is other else torch.cat([one, other]) for one, other in pairs])
    try:
        with warnings.catch_warnings(action="ignore"):
            probes = [evaluate(each) for each in (first, second, both)]
    except Exception:  # of whatever kind: the model wants other numbers of rows
        return
    if any(each.drew for each in probes):
        return
    outputs = zip(*(leaves(each.output) for each in probes), strict=False)
    for number, (one, other, together) in enumerate(outputs):
        rows = [len(leaves(each)[0]) for each in (first, second, both)]
        has_rows = [len(t) if t.dim() else 0 for t in (one, other, together)] == rows
        if has_rows and (mixed := _mixed([one, other], together)):
            warn(
                f"the rows of a batch are not independent of one another: beside other rows, "
                f"tensor {number} of the output {mixed}, in evaluation mode, so that microbatches "
                f"give something else than their batch. If the first dimension is another one "
                f"(batch_first=False), put the rows first; if rows belong together, train with one "
                f"microbatch a batch"
            )
            return


def _mixed(alone: list[Tensor], together: Tensor) -> str | None:
    if not together.is_floating_point() or not together.numel():
        return None
    for each in alone:
        if each.shape[1:] != together.shape[1:]:
            return f"has rows of {list(together.shape[1:])} in place of {list(each.shape[1:])}"
    furthest = (together - torch.cat(alone)).abs().max().item()
    is_far = furthest > rounding(together.dtype) * together.abs().max().item()
    return f"changes by {furthest:.2g}" if is_far else None


def _of_a_forward(does: str) -> str:
    return (
        f"the pipeline trains a copy of the model, in which something still {does} of the "
        f"original, which stays as it is: a lambda, a replaced forward or a hook that holds a "
        f"module of the model. Make it a method of the module, which calls self.<name>(...); what "
        f"is not to be trained needs .requires_grad_(False)"
    )
