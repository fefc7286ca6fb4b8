"""Mixed precision: float32 weights, and passes in a narrower type where that is safe.

PipeDream-2BW trains so (section 5.1).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

DTYPES = (None, torch.bfloat16, torch.float16)


def rounding(dtype: torch.dtype) -> float:
    """Return by how much of itself a number may differ that was computed in another order."""
    return 3e-2 if dtype in DTYPES else 1e-3


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a context in which operators compute in ``dtype`` where that is safe; None: as ever.

    Without PyTorch's cache of narrowed weights: all threads have one, and each empties it, so that
    it would depend on chance whether a weight that is used twice in a forward is narrowed twice.
    """
    if dtype is None:
        return nullcontext()
    return torch.autocast(device.type, dtype, cache_enabled=False)
