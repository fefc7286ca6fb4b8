"""Seconds of named regions, over many repeats, on a CPU or a GPU."""

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Stopwatch:
    """Times regions by name; on a GPU by events in its stream, which is not held up.

    Args:
        device: where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[Hashable, list[float]] = defaultdict(list)
        self._events: list[tuple[Hashable, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def time(self, name: Hashable) -> Iterator[None]:
        """Add the block's seconds to those of ``name``."""
        if not self._cuda:
            start = time.perf_counter()
            yield
            self._seconds[name].append(time.perf_counter() - start)
            return
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        self._events.append((name, first, last))

    def collect(self) -> None:
        """Wait for the GPU to pass all events; between two repeats."""
        if self._events:
            torch.cuda.synchronize()
        for name, first, last in self._events:
            self._seconds[name].append(first.elapsed_time(last) / 1e3)
        self._events.clear()

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
