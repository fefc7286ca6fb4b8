"""Running a module without a trace in its buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def buffers_untouched(module: nn.Module) -> Iterator[None]:
    """Let ``module`` write copies of its buffers: batch norm must not count a microbatch twice."""
    originals = [(owner, dict(owner._buffers)) for owner in module.modules() if owner._buffers]
    for owner, tensors in originals:
        owner._buffers.update(
            {name: None if t is None else t.clone() for name, t in tensors.items()}
        )
    try:
        yield
    finally:
        for owner, tensors in originals:
            owner._buffers.update(tensors)
