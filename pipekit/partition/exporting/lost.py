"""What torch.export would leave out of a model, without a word: found, and refused."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from pipekit.layers.autograd_graph import nodes
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.operations import LOST, own_name
from pipekit.partition.recording.refusal import NotRecordable, caller
from pipekit.partition.recording.templates import tensors
from pipekit.partition.recording.untouched import run_to_look_at, stateless

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def require_nothing_lost(model: nn.Module, example: Any) -> None:
    """Refuse a model that does more than the operators in its forward, which a graph would lose.

    The model runs once on the example, in the mode that it is in.

    Raises:
        NotRecordable: it has hooks, or keeps state in Python, or its forward has an autograd
            function of its own, activation checkpointing or hooks on tensors.
    """
    for name, module in model.named_modules():
        for kind in _HOOKS:
            if getattr(module, kind):
                raise NotRecordable(
                    f"{name or type(model).__name__} has {kind[1:].replace('_', ' ')}, which an "
                    f"exported graph would not call: remove them, or use way='record'"
                )
    sample = batches.differentiable_copy(example)
    everything = list(model.modules())
    with run_to_look_at(model), stateless(everything, model), torch.enable_grad(), _Watch():
        output = batches.call(model, sample)
    for name in _functions(tensors(output)):
        reentrant = "use_reentrant=False, and " if name.startswith("Checkpoint") else ""
        raise NotRecordable(
            f"the forward applies the autograd function {name}, whose backward an exported graph "
            f"would replace by that of the operators in its forward: {reentrant}use way='record', "
            f"with the function in a module"
        )


class _Watch(TorchFunctionMode):
    """Refuses what acts on autograd's graph beside operators."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        if own_name(func) in LOST:
            raise NotRecordable(
                f"Tensor.{own_name(func)} at {caller()} acts on a tensor in a way that an exported "
                f"graph would not repeat: use way='record', and call it within a block"
            )
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            raise NotRecordable(
                f"{caller()} runs under torch.utils.checkpoint or other hooks on saved tensors, "
                f"which an exported graph would lose: use way='record', which keeps those within "
                f"blocks, or leave them out and train with recompute='always'"
            )
        return func(*args, **(kwargs or {}))


def _functions(roots: list[Tensor]) -> Iterator[str]:
    """Yield the names of the autograd functions written in Python that tensors come from."""
    for node in nodes(roots):
        if isinstance(node, BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")
