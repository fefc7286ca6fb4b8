"""What PyTorch's allocator has given out on a GPU at most.

That is more than the tensors that ``memory_tracker.py`` follows: also gradients of
activations, what has arrived and waits, and what operators use for a moment.  It is the GPU's, and
so of all workers together that have the same one.
"""

import torch


def begin(device: torch.device) -> None:
    """Forget earlier peaks.

    Workers on the same GPU may call it one after another: what one holds already counts on.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def most_bytes(device: torch.device) -> int | None:
    """Return the most bytes given out at once since :func:`begin`; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
