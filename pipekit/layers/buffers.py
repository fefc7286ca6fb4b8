"""What modules keep in buffers: left alone, read, and put back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


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


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return all buffers by their names, those too that are no part of the ``state_dict()``."""
    return dict(module.named_buffers(remove_duplicate=False))


def set_buffers(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Put saved buffers in the place of those of the same names, on the same device."""
    for name, tensor in saved.items():
        owner, _, own_name = name.rpartition(".")
        buffers = module.get_submodule(owner)._buffers
        before = buffers[own_name]
        buffers[own_name] = tensor.to(tensor.device if before is None else before.device)
