"""Layers timed by the minibatch: how steady PipeDream's profile is (section 3.2).

:func:`pipekit.profile` gives medians; here every minibatch is kept, to see how they vary.  Times
are of a thread's CPU: the claims are of an idle host, on which these are the clock's; on any other
they leave out what its other programs take, but not that these use its caches and memory.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import cycle

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.profiling.layer_passes import Input, layer_name, run_backward, run_forward
from pipekit.trees import Tree, differentiable

WARM_UP = 5
"""Minibatches of a profile run that do not count."""

KEEP_MEMORY = {f"MALLOC_{name}_THRESHOLD_": str(2**30) for name in ("MMAP", "TRIM")}
"""Environment in which glibc reuses memory, as PipeDream does (section 3.5).  Otherwise it may ask
the kernel for every larger output anew, in one process and not in the other."""

SAME = "the same product"
"""A column of profile runs: what is always the same, so that what it varies by is the host's."""

SAME_SIZE = 256
"""Rows and columns of that product, which takes as long as a layer."""

Build = Callable[[], nn.Sequential]


def minibatch(model: nn.Sequential, sample: Tensor) -> dict[str, float]:
    """Return the CPU seconds of each layer, forward and backward together, and of :data:`SAME`."""
    always = torch.ones(SAME_SIZE, SAME_SIZE)
    torch.mm(always, always)  # as layers, it finds its operands where they were used before
    start = time.process_time()
    torch.mm(always, always)
    same = time.process_time() - start
    names = [layer_name(layer, number) for number, layer in enumerate(model)]
    x: Tree = sample
    seconds, pending = {}, []
    for name, layer in zip(names, model, strict=True):
        entered = Input(x, editable=False)
        start = time.process_time()
        x = run_forward(layer, name, entered.tree)
        seconds[name] = time.process_time() - start
        pending.append((name, entered, x))
    gradients: list[Tensor | None] = [torch.ones_like(t) for t in differentiable(x)]
    for name, entered, y in reversed(pending):
        start = time.process_time()
        run_backward(name, y, gradients)
        seconds[name] += time.process_time() - start
        gradients = entered.gradients
    return seconds | {SAME: same}


def pair_of_runs(
    build: Build, sample: Tensor, minibatches: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the profile runs of two equal workers: processes of one core at a time.

    They take turns, minibatch by minibatch, on one core after the other, so that both meet whatever
    else a machine does. Where a process lies in memory has a part in its times: another pair is of
    new processes.  A run has a row a minibatch, and the columns of :func:`minibatch`; ``build`` is
    a function of a module.
    """
    before, cores = dict(os.environ), sorted(os.sched_getaffinity(0))
    os.environ.update(KEEP_MEMORY)
    try:
        with ExitStack() as stack:
            workers = [stack.enter_context(_worker(build, sample)) for _ in range(2)]
            turns = [
                [worker.submit(_own_minibatch, core).result() for worker in workers]
                for _, core in zip(range(WARM_UP + minibatches), cycle(cores), strict=False)
            ]
    finally:
        os.environ.clear()
        os.environ.update(before)
    one, other = (pd.DataFrame(rows[WARM_UP:]) for rows in zip(*turns, strict=True))
    return one, other


def _worker(build: Build, sample: Tensor) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, _start_worker, (build, sample))


def _start_worker(build: Build, sample: Tensor) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    global _profiled
    _profiled = build(), sample


_profiled: tuple[nn.Sequential, Tensor]
"""The network and the minibatch of this process, if it is a worker."""


def _own_minibatch(core: int) -> dict[str, float]:
    os.sched_setaffinity(0, {core})
    return minibatch(*_profiled)
