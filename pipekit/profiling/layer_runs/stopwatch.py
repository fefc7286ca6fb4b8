"""Seconds of named regions, over many repeats, on a CPU or a GPU."""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pipekit.devices import Clock


class Stopwatch:
    """Times regions by name, without holding up a GPU that computes them.

    Args:
        device: where the work runs.
    """

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
