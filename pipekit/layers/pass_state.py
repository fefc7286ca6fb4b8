"""What the pipeline is about to do with a layer, in each worker's thread, and mixed precision.

Outside any pipeline no forward is run twice, and each is a batch of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pipekit.host.user_frames import warn


class _PassState(threading.local):
    checkpointing = False
    recomputing = False
    ends_batch = True


_now = _PassState()


def is_checkpointing() -> bool:
    """Return whether the present forward keeps only its input, and will be run again."""
    return _now.checkpointing


def is_recomputing() -> bool:
    """Return whether the present forward has been run before (torchgpipe, section 3.2.4)."""
    return _now.recomputing


def ends_batch() -> bool:
    """Return whether the present microbatch is the last one that this worker has of its batch."""
    return _now.ends_batch


def set_ends_batch(ends_batch: bool) -> None:
    """Set it in this thread, until the end of :func:`during`."""
    _now.ends_batch = ends_batch


@contextmanager
def during(*, checkpointing: bool = False, recomputing: bool = False) -> Iterator[None]:
    """Set what is given, in this thread, for a while; what is set meanwhile ends with it."""
    before = dict(vars(_now))
    _now.checkpointing = checkpointing or _now.checkpointing
    _now.recomputing = recomputing or _now.recomputing
    try:
        yield
    finally:
        vars(_now).clear()
        vars(_now).update(before)


def warn_of_modes() -> None:
    """Warn of what changes operators in this thread alone, and so in no worker's."""
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    names = [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        names.append("saved_tensors_hooks")
    if names:
        warn(
            f"layers run in other threads, where the mode {names[0]} of this one does not act: "
            f"enter it in the forward of a layer, or leave it out"
        )


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
