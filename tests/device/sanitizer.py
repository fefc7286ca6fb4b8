"""PyTorch's CUDA sanitizer in every thread: by itself it sees the thread only that imports torch.

Its record of streams and accesses is not made for several threads, so that one at a time has it.
"""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace as gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode

ON = "TORCH_CUDA_SANITIZER" in os.environ


def watch_threads() -> None:
    """Have all threads that start from now on watched, and autograd's within their backwards."""
    from torch.cuda._sanitizer import cuda_sanitizer

    mode, lock, start = cuda_sanitizer.dispatch, threading.RLock(), threading.Thread.start

    def alone(handle: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handle)
        def locked(*args: Any) -> Any:
            with lock:
                return handle(*args)

        return locked

    class Watched(TorchDispatchMode):
        """The sanitizer's mode, of which each thread needs one of its own."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return mode.__torch_dispatch__(func, types, args, kwargs)

    def watched(run: Callable[[], None]) -> Callable[[], None]:
        @wraps(run)
        def within() -> None:
            with Watched():  # type: ignore[no-untyped-call]
                run()

        return within

    def start_watched(thread: threading.Thread) -> None:
        thread.run = watched(thread.run)  # type: ignore[method-assign]
        start(thread)

    handler = mode.event_handler
    launch = handler._handle_kernel_launch

    def races(stream: Any, read: Any, written: Any, outputs: Any, operator: Any, names: Any) -> Any:
        """Return those between memory that is read or written, and no more than torch means to."""
        if "::new_" in operator.name:  # it reads a shape, which torch's pattern for them misses
            read = set()
        found: list[Any] = launch(stream, read, written, outputs, operator, names)
        # An empty tensor is known by Python's id, which another has next.
        return [race for race in found if race.allocation_stack_trace]

    handler._handle_kernel_launch = alone(races)  # type: ignore[method-assign]
    for registry in vars(gpu_trace).values():
        if isinstance(registry, CallbackRegistry):
            registry.callback_list = [alone(each) for each in registry.callback_list]
    threading.Thread.start = start_watched  # type: ignore[assignment,method-assign]
