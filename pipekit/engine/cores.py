"""How the cores of a machine are shared out among workers."""

import os

import torch

from pipekit.cores import available_cores


def share_cores(workers: int) -> None:
    """Let this thread's operators use one worker's share of the cores.

    At most OMP_NUM_THREADS, if that is set.  Over how many threads a sum is split decides how it
    is rounded, so that every transport must share the cores alike.
    """
    cores = available_cores()
    allowed = int(os.environ.get("OMP_NUM_THREADS") or cores)
    torch.set_num_threads(max(1, min(allowed, cores // workers)))
