"""How the cores of a machine are shared out among workers."""

import os

import torch


def share_cores(workers: int) -> None:
    """Let this thread's operators use one worker's share of the cores.

    At most OMP_NUM_THREADS, if that is set.  Over how many threads a sum is split decides how it
    is rounded, so that every transport must share the cores alike.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    allowed = int(os.environ.get("OMP_NUM_THREADS") or cores)
    torch.set_num_threads(max(1, min(allowed, cores // workers)))
