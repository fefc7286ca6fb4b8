"""The order of a pipeline's backwards, laid into autograd's graph (torchgpipe, section 3.2.2).

Autograd knows no pipeline: what its graph does not say, it may do in any order.  So the graph of a
:class:`pipekit.PipelinedModule` has a node for each pass, and an edge wherever one must wait::

    inputs -> enter -> pass(stage 0, microbatch 0) -> pass(1, 0) -> ... -> leave -> outputs
                    -> pass(stage 0, microbatch 1) -> pass(1, 1) -> ... ->

The edges between passes of a stage, from each microbatch to the next, are the paper's Fork and
Join.  Like those, all edges but the outermost carry tensors without elements: the nodes only note
in which order autograd comes to them, and the engine computes when autograd has come to the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipekit.devices import CPU, is_accelerator
from pipekit.trees import differentiable

Place = tuple[int, int]
"""Stage and microbatch."""


Gradients = Sequence[Tensor | None]


def link(
    begin: Callable[[Gradients], object],
    reached: Callable[[Place], object],
    differentiate: Callable[[], Gradients],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    passes: Sequence[Place],
    in_order: bool = True,
) -> tuple[Tensor, ...]:
    """Return the outputs as results of the inputs, by way of the passes.

    A backward calls ``begin`` with the gradients of the outputs, ``reached`` with each pass as
    autograd comes to it, and ``differentiate`` for the gradients of the inputs.
    """
    stages = 1 + max(stage for stage, _ in passes)
    microbatches = 1 + max(microbatch for _, microbatch in passes)
    into = _Enter.apply(differentiate, microbatches, *_in_present_streams(inputs))
    tokens: dict[Place, Tensor] = {(-1, k): token for k, token in enumerate(into)}
    for stage, microbatch in passes:
        before = [(stage - 1, microbatch)]
        if in_order and microbatch:
            before.append((stage, microbatch - 1))
        waits = [tokens[place] for place in before]
        tokens[stage, microbatch] = _Pass.apply(reached, (stage, microbatch), *waits)
    last = [tokens[stages - 1, k] for k in range(microbatches)]
    return tuple(_Leave.apply(begin, outputs, *last))


def _in_present_streams(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs as results of nodes in the streams that are current now.

    The nodes of the order are the host's, of which autograd knows no stream.  For these autograd
    has whoever made the inputs wait.
    """
    found = list(inputs)
    places: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(inputs):
        if tensor.requires_grad and is_accelerator(tensor.device):
            places.setdefault(tensor.device, []).append(place)
    for each in places.values():
        for place, tensor in zip(each, _Arrive.apply(*(inputs[p] for p in each)), strict=True):
            found[place] = tensor
    return found


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return gradients


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, differentiate: Any, microbatches: int, *inputs: Tensor) -> Any:
        ctx.differentiate = differentiate
        ctx.save_for_backward(*inputs)
        return tuple(torch.empty(0, device=CPU) for _ in range(microbatches))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        again = torch.is_grad_enabled()  # as create_graph=True asks
        with torch.no_grad():
            gradients = ctx.differentiate()
        if again:
            gradients = _Once.apply(gradients, *ctx.saved_tensors)
        return None, None, *gradients


class _Once(torch.autograd.Function):
    """Gradients that are right and have no graph: a penalty of them says so, or trains nothing."""

    @staticmethod
    def forward(ctx: Any, gradients: Gradients, *inputs: Tensor) -> Any:
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        raise ValueError(
            "the gradients of a PipelinedModule cannot be differentiated again, and a penalty of "
            "them would train nothing: compute them with torch.nn.Sequential(*module), which runs "
            "the same layers without a pipeline"
        )


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reached: Any, place: Place, *tokens: Tensor) -> Tensor:
        ctx.reached, ctx.place, ctx.tokens = reached, place, len(tokens)
        return torch.empty(0, device=CPU)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> Any:
        ctx.reached(ctx.place)
        return None, None, *[token] * ctx.tokens


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, begin: Any, outputs: Sequence[Tensor], *tokens: Tensor) -> Any:
        ctx.begin, ctx.tokens = begin, len(tokens)
        ctx.set_materialize_grads(False)
        through = {id(tensor) for tensor in differentiable(outputs)}
        ctx.mark_non_differentiable(*(t for t in outputs if id(t) not in through))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.begin(gradients)
        return None, None, *[torch.empty(0, device=CPU)] * ctx.tokens
