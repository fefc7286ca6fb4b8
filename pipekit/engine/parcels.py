"""Batches packed for another process.

PyTorch's own pickling takes 300 us a tensor there and back, whatever its size; NumPy's takes a few.
"""

import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def pack(value: Any) -> bytes:
    """Return ``value``, which may hold tensors anywhere, as bytes for :func:`unpack`."""
    buffer = io.BytesIO()
    _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Return what :func:`pack` was given; only for bytes from our own processes."""
    return pickle.loads(data)


def with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a tensor of the same values with the given strides."""
    if tensor.stride() == strides:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


def strides_to_keep(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's strides, or contiguous ones if several of its elements share memory."""
    strides = tensor.stride()
    if 0 in strides and any(s == 0 and n > 1 for s, n in zip(strides, tensor.shape, strict=True)):
        return tensor.contiguous().stride()
    return strides


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided:
            return NotImplemented
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        # As bytes, since NumPy does not know all of torch's types.
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        return _restore, (raw, tensor.shape, strides_to_keep(tensor), tensor.dtype)


def _restore(
    raw: NDArray[np.uint8], shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return with_strides(torch.from_numpy(raw).view(dtype).view(shape), strides)
