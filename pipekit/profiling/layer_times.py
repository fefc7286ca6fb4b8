"""The seconds of each layer's passes, updates and copies: what is run, and what is timed of it."""

import copy
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipekit.devices import Clock
from pipekit.host.operator_threads import SWITCH_INTERVAL_S, share_cores
from pipekit.layers.skips import Name, call
from pipekit.profiling.layer_passes import (
    Input,
    run_backward,
    run_backward_input,
    run_forward,
)
from pipekit.profiling.sizes import LayerSizes, crossing
from pipekit.trees import Tree, differentiable, tree_map

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_Pending = tuple[int, Input, Any]
"""A layer's number, its input, and its output with the skips that it stashed."""


class Stopwatch:
    """Times regions by name, without holding up a GPU that computes them."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._seconds: dict[Hashable, list[float]] = defaultdict(list)
        self._marks: list[tuple[Hashable, object, object]] = []

    @contextmanager
    def time(self, name: Hashable) -> Iterator[None]:
        """Time the block; its seconds count as those of ``name`` once they are collected."""
        start = self._clock.now()
        yield
        self._marks.append((name, start, self._clock.now()))

    def collect(self) -> None:
        """Count what was timed, once a GPU has computed it; call this between two repeats."""
        for name, start, end in self._marks:
            start_s = self._clock.seconds(start)
            self._seconds[name].append(self._clock.seconds(end) - start_s)
        self._marks.clear()

    def reset(self) -> None:
        """Forget what was timed, which was to warm up."""
        self.collect()
        self._seconds.clear()

    def has(self, name: Hashable) -> bool:
        """Return whether the region was timed."""
        return name in self._seconds

    def median(self, *names: Hashable) -> float:
        """Return the median of the seconds of some regions together."""
        return float(np.median(self._together(names)))

    def mean(self, name: Hashable) -> float:
        """Return the mean of a region's seconds."""
        return float(np.mean(self._seconds[name]))

    def spread(self, *names: Hashable) -> float:
        """Return the interquartile range of some regions' seconds together over their median."""
        low, middle, high = np.percentile(self._together(names), [25, 50, 75])
        return float((high - low) / middle)

    def _together(self, names: tuple[Hashable, ...]) -> Any:
        return np.sum([self._seconds[name] for name in names], axis=0)  # one number a repeat


def time_step(
    model: nn.Sequential,
    x: Tree,
    found: Sequence[LayerSizes],
    dtype: torch.dtype | None,
    watch: Stopwatch,
) -> None:
    """Time two microbatches, one through the undivided model and one layer by layer.

    The two are in flight together, so that a backward finds its tensors no warmer in the caches
    than in a pipeline, and adds to gradients that are there.
    """
    whole, layered = (tree_map(torch.clone, x) for _ in range(2))  # a layer may write into its own
    with watch.time("whole forward"):
        whole = run_forward(model, "the whole model", whole, dtype)
    pending = _forwards(model, layered, found, dtype, watch)
    with watch.time("whole backward"):
        ones = [torch.ones_like(t) for t in differentiable(whole)]
        run_backward("the whole model", whole, ones)
    for number, _, passed, gradients in _backwards(pending):
        with watch.time(("backward", number)):
            run_backward(found[number].profile.name, passed, gradients)


def time_parts(
    model: nn.Sequential,
    x: Tree,
    found: Sequence[LayerSizes],
    dtype: torch.dtype | None,
    repeats: int,
    watch: Stopwatch,
) -> None:
    """Time backwards in two parts, layer by layer, each right after the other."""
    by_branches: dict[int, bool] = {}  # as the engine, which looks at the first split backward
    unheard = Stopwatch(torch.device("cpu"))
    for repeat in range(1 + repeats):
        heard = watch if repeat else unheard
        pending = _forwards(model, tree_map(torch.clone, x), found, dtype, unheard)
        for number, entered, passed, gradients in _backwards(pending):
            with heard.time(("backward_input", number)):
                name = found[number].profile.name
                rest = run_backward_input(name, passed, gradients, entered)
            if rest and number not in by_branches:
                by_branches[number] = rest.is_exact()
            with heard.time(("backward_weight", number)):
                if rest:
                    rest.run(by_branches[number])
    watch.collect()


def _forwards(
    model: nn.Sequential,
    x: Tree,
    found: Sequence[LayerSizes],
    dtype: torch.dtype | None,
    watch: Stopwatch,
) -> list[_Pending]:
    """Time the forward of each layer, cut from the one before; return what they left."""
    skips = crossing(model)
    under_way: dict[Name, Tensor] = {}
    pending = []
    for number, layer in enumerate(model):
        popped = {s.name: under_way.pop(s.name) for s in skips if s.destination == number}
        entered = Input(x, found[number].edits_input, popped)
        opened = partial(call, layer, incoming=entered.skips)
        with watch.time(("forward", number)):
            passed = run_forward(opened, found[number].profile.name, entered.tree, dtype)
        pending.append((number, entered, passed))
        x, stashed = passed
        under_way |= stashed
    return pending


def _backwards(
    pending: list[_Pending],
) -> Iterator[tuple[int, Input, Tree, Sequence[Tensor | None]]]:
    """Yield the layers from the last on: number, input, output, and the output's gradients.

    Whoever takes one runs its backward before taking the next.
    """
    gradients: list[Tensor | None] = [torch.ones_like(t) for t in differentiable(pending[-1][2][0])]
    of_skips: dict[Name, Tensor | None] = {}
    while pending:
        number, entered, passed = pending.pop()
        gradients += [of_skips[name] for name, t in passed[1].items() if differentiable(t)]
        yield number, entered, passed, gradients
        gradients = entered.gradients
        of_skips |= entered.skip_gradients


def time_updates(
    model: nn.Sequential,
    x: Tree,
    make: OptimizerFactory,
    dtype: torch.dtype | None,
    repeats: int,
    watch: Stopwatch,
) -> None:
    """Time the optimizer's step and a copy of each layer, after passes that leave no cache warm.

    It comes last: some layers take another time with the weights that it makes.
    """
    optimizers = {
        number: make(trained)
        for number, layer in enumerate(model)
        if (trained := [p for p in layer.parameters() if p.requires_grad])
    }
    copies = {number: list(copy.deepcopy(model[number]).parameters()) for number in optimizers}
    unheard = Stopwatch(torch.device("cpu"))
    for repeat in range(1 + repeats):
        heard = watch if repeat else unheard
        run_forward(model, "the whole model", tree_map(torch.clone, x), dtype)
        for number, optimizer in optimizers.items():
            with heard.time(("update", number)):
                optimizer.step()
        run_forward(model, "the whole model", tree_map(torch.clone, x), dtype)
        for number, twins in copies.items():
            with heard.time(("copy", number)), torch.no_grad():
                for twin, parameter in zip(twins, model[number].parameters(), strict=True):
                    twin.copy_(parameter)
    watch.collect()


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
