"""What torchgpipe's tests require of ``GPipe``, of :class:`pipekit.PipelinedModule`.

The behaviours are those that the tests of torchgpipe 0.0.7 check, each said anew; what checks the
parts of its own machinery alone (its queues, streams, phony tensors) is left out.  Where pipekit
differs, the case is in one of the sections "differs", and in docs/from_other_tools.md.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import pipekit as pk

MODES = ["never", "always", "except_last"]


class Calls(nn.Module):
    """Calls a function, which returns the output."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def looks(see: Callable[[Tensor], object]) -> nn.Module:
    """Return a layer that calls a function, and gives its input."""

    def look(x: Tensor) -> Tensor:
        see(x)
        return x

    return Calls(look)


def gpipe(model: Iterable[nn.Module], split: Sequence[int], **how: Any) -> pk.PipelinedModule:
    """Return the module as torchgpipe's tests make it: on the CPU, one microbatch."""
    return pk.PipelinedModule(
        list(model), split, **{"chunks": 1, "devices": how_many(split), **how}
    )


def how_many(split: Sequence[int]) -> list[str]:
    return ["cpu"] * len(split)


def linears(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(count)))


def assert_as_plain(model: nn.Sequential, split: list[int], x: Tensor, **how: Any) -> None:
    """Require output and gradients of the plain module, up to rounding by microbatches."""
    module, found = gpipe(copy.deepcopy(model), split, **how), []
    for each in module, model:
        given = x.clone().requires_grad_()
        output = each(given)
        output.mean().backward()
        found.append([output, given.grad, *(p.grad for p in each.parameters())])
    torch.testing.assert_close(found[0], found[1])
