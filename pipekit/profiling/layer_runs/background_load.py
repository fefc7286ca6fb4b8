"""Others at work: what a layer costs depends on who shares the machine with it."""

import copy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipekit.host.operator_threads import SWITCH_INTERVAL_S, share_cores
from pipekit.profiling.layer_runs.layer_passes import run_backward, run_forward
from pipekit.trees import Tree, differentiable, tree_map


@contextmanager
def background_load(
    model: nn.Sequential, x: Tree, others: int, dtype: torch.dtype | None = None
) -> Iterator[None]:
    """Have ``others`` threads train copies of a model, as the engine's other workers would.

    The cores are shared out, and the interpreter's turns are as short, as in a run over threads.
    """
    if not others:
        yield
        return
    over = threading.Event()
    threads = [
        threading.Thread(
            target=_train, args=(copy.deepcopy(model), x, others, dtype, over), daemon=True
        )
        for _ in range(others)
    ]
    cores, interval = torch.get_num_threads(), sys.getswitchinterval()
    share_cores(others + 1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        torch.set_num_threads(cores)
        sys.setswitchinterval(interval)


def _train(
    model: nn.Sequential, x: Tree, others: int, dtype: torch.dtype | None, over: threading.Event
) -> None:
    share_cores(others + 1)
    while not over.is_set():
        model.zero_grad()
        y = run_forward(model, "the whole model", tree_map(torch.clone, x), dtype)
        run_backward("the whole model", y, [torch.ones_like(t) for t in differentiable(y)])
