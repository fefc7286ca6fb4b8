"""The seconds of each layer's passes, updates and copies: what is run, and what is timed of it."""

import copy
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipekit.devices import Clock
from pipekit.host.operator_threads import SWITCH_INTERVAL_S, share_cores
from pipekit.layers.module_state import trained
from pipekit.layers.skips import Name
from pipekit.layers.split_backward import WeightBackward
from pipekit.profiling.layer_passes import Input, cut_forwards, run_backward, run_forward
from pipekit.trees import Tree, differentiable, tree_map

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_Pending = tuple[str, Input, Any]  # name, input, output with the skips that it stashed
WHOLE = "the whole model"
WARM_UP = 2  # rounds that do not count, after the pass that found the sizes


class Stopwatch:
    """Times regions by name, without holding up a GPU that computes them."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._seconds: dict[Hashable, list[float]] = defaultdict(list)
        self._marks: list[tuple[Hashable, object, object]] = []

    @contextmanager
    def time(self, name: Hashable) -> Iterator[None]:
        """Time the block; its seconds are those of ``name`` once they are collected."""
        start = self._clock.now()
        yield
        self._marks.append((name, start, self._clock.now()))

    def collect(self) -> None:
        """Count what was timed, once a GPU has computed it; call this between two repeats."""
        for name, start, end in self._marks:
            start_s = self._clock.seconds(start)
            self._seconds[name].append(self._clock.seconds(end) - start_s)
        self._marks.clear()

    def seconds(self, *names: Hashable) -> NDArray[np.float64]:
        """Return the seconds of some regions together, one number a repeat; 0 if never timed."""
        found = (self._seconds.get(name, [0.0] * (WARM_UP + 1)) for name in names)
        return np.asarray(sum(np.array(each[WARM_UP:]) for each in found))


@dataclass
class TimedLayers:
    """A model that is run layer by layer; ``edits`` says whether each writes into its input."""

    model: nn.Sequential
    x: Tree
    dtype: torch.dtype | None
    edits: Sequence[bool]
    watch: Stopwatch

    def time_step(self) -> None:
        """Time two microbatches, one through the undivided model and one layer by layer.

        The two are in flight together, so that a backward finds its tensors no warmer in the caches
        than in a pipeline, and adds to gradients that are there.
        """
        with self.watch.time("whole forward"):
            whole = self._forward()
        pending = self._forwards(lambda number: self.watch.time(("forward", number)))
        with self.watch.time("whole backward"):
            run_backward(WHOLE, whole, [torch.ones_like(t) for t in differentiable(whole)])
        for number, _, backward in _backwards(pending):
            with self.watch.time(("backward", number)):
                backward()
        self.watch.collect()

    def time_parts(self, rounds: int) -> None:
        """Time backwards in two parts, layer by layer, each right after the other."""
        by_branches: dict[int, bool] = {}  # as the engine, which looks at the first split backward
        for _ in range(rounds):
            for number, entered, backward in _backwards(self._forwards(nullcontext)):
                with self.watch.time(("backward_input", number)):
                    rest = backward(entered)
                if rest and number not in by_branches:
                    by_branches[number] = rest.is_exact()
                with self.watch.time(("backward_weight", number)):
                    if rest:
                        rest.run(by_branches[number])
        self.watch.collect()

    def time_updates(self, make: OptimizerFactory, rounds: int) -> None:
        """Time the optimizer's step and a copy of each layer, after passes that cool the caches.

        It comes last: some layers take another time with the weights that it makes.
        """
        optimizers = {
            n: make(each) for n, layer in enumerate(self.model) if (each := trained(layer))
        }
        own = {number: list(self.model[number].parameters()) for number in optimizers}
        twins = {number: [p.detach().clone() for p in each] for number, each in own.items()}
        for _ in range(rounds):
            self._forward()
            for number, optimizer in optimizers.items():
                with self.watch.time(("update", number)):
                    optimizer.step()
            self._forward()
            for number in optimizers:
                with self.watch.time(("copy", number)), torch.no_grad():
                    for twin, parameter in zip(twins[number], own[number], strict=True):
                        twin.copy_(parameter)
        self.watch.collect()

    def _forward(self) -> Tree:
        # Of a copy, since a layer may write into its input.
        return run_forward(self.model, WHOLE, tree_map(torch.clone, self.x), self.dtype)

    def _forwards(self, around: Callable[[int], AbstractContextManager[object]]) -> list[_Pending]:
        """Run the forward of each layer within ``around``, and return what they left."""
        x = tree_map(torch.clone, self.x)
        return [*cut_forwards(self.model, x, self.dtype, self.edits.__getitem__, around)]


def _backwards(
    pending: list[_Pending],
) -> Iterator[tuple[int, Input, Callable[..., WeightBackward | None]]]:
    """Yield the layers from the last on: number, input, and backward, to be run before the next."""
    gradients: list[Tensor | None] = [torch.ones_like(t) for t in differentiable(pending[-1][2][0])]
    of_skips: dict[Name, Tensor | None] = {}
    while pending:
        name, entered, passed = pending.pop()
        gradients += [of_skips[skip] for skip, t in passed[1].items() if differentiable(t)]
        yield len(pending), entered, partial(run_backward, name, passed, gradients)
        gradients = entered.gradients
        of_skips |= entered.skip_gradients


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

    def train(twin: nn.Sequential) -> None:
        share_cores(others + 1)
        while not over.is_set():
            twin.zero_grad()
            y = run_forward(twin, WHOLE, tree_map(torch.clone, x), dtype)
            run_backward(WHOLE, y, [torch.ones_like(t) for t in differentiable(y)])

    twins = [copy.deepcopy(model) for _ in range(others)]
    threads = [threading.Thread(target=train, args=(twin,), daemon=True) for twin in twins]
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
