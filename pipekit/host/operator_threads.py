"""How the cores of a machine are shared out among workers."""

import os

import torch

from pipekit.host.cores import available_cores

SWITCH_INTERVAL_S = 1e-4
"""How long a worker's thread may keep Python's interpreter.  Operators hold it for microseconds;
with Python's own 5 ms small stages are 15 % slower."""


def share_of_cores(workers: int) -> int:
    """Return how many threads a worker's operators may use; at most OMP_NUM_THREADS, if set."""
    cores = available_cores()
    allowed = int(os.environ.get("OMP_NUM_THREADS") or cores)
    return max(1, min(allowed, cores // workers))


def share_cores(workers: int) -> None:
    """Let this thread's operators use one worker's share of the cores.

    Over how many threads a sum is split decides how it is rounded, so that every transport must
    share the cores alike.
    """
    torch.set_num_threads(share_of_cores(workers))
