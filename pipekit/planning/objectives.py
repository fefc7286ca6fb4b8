"""What PipeDream's dynamic program minimises: seconds a minibatch, or bytes a worker."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from pipekit.clusters import Level
from pipekit.planning.layer_ranges import Floats, Index, LayerRanges

Cost = Literal["paper", "released"]


def stage_seconds(
    cost: Cost, compute: Floats | float, sync: Floats | float, replicas: int
) -> Floats:
    """Return T of PipeDream, section 3.2, of a stage whose replicas take turns with minibatches."""
    together = np.maximum(compute, sync) if cost == "paper" else np.add(compute, sync)
    return np.asarray(together / replicas)


def sync_seconds(parameter_bytes: Floats | float, replicas: int, level: Level) -> Floats | float:
    """Return W of PipeDream, section 3.2; what a worker sends and receives share its link."""
    return 4 * (replicas - 1) / (replicas * level.used_bandwidth) * parameter_bytes


def transfer_seconds(boundary_bytes: Floats | float, level: Level) -> Floats | float:
    """Return 2 C of PipeDream, section 3.2: an activation and its gradient, one after the other."""
    return 2 * boundary_bytes / level.used_bandwidth


class Seconds:
    """Seconds a minibatch in steady state, as an objective of the dynamic program.

    Matrices hold the value for the layers between two cuts, ``[first, stop]``, infinite where there
    are none or where a worker's memory does not hold them.  ``in_flight_matters`` says whether they
    depend on the minibatches in flight.
    """

    def __init__(
        self,
        ranges: LayerRanges,
        levels: Sequence[Level],
        cost: Cost,
        memory: "Bytes",
        limit: float,
    ) -> None:
        self._ranges, self._levels, self._cost = ranges, levels, cost
        self._memory, self._limit = memory, limit
        self._every = ranges.every()
        self._compute_s = np.where(ranges.possible, ranges.total("compute_s", *self._every), np.inf)
        self.in_flight_matters = False
        if limit < np.inf:
            fullest = memory.worker(math.prod(level.width for level in levels))
            self.in_flight_matters = bool((fullest[fullest < np.inf] > limit).any())

    def worker(self, in_flight: int) -> Floats:
        if self._limit == np.inf:
            return self._compute_s
        return np.where(self._memory.worker(in_flight) <= self._limit, self._compute_s, np.inf)

    def replicated(self, inner: Floats, level: int, members: int) -> Floats:
        weights = self._ranges.total("parameter_bytes", *self._every)
        sync = sync_seconds(weights, members, self._levels[level])
        return stage_seconds(self._cost, inner, sync, members)

    def transfer(self, level: int) -> Floats:
        """Return seconds to pass each cut, there and back, at a level."""
        return np.asarray(transfer_seconds(self._ranges.boundary_bytes, self._levels[level]))


class Bytes:
    """Bytes on the fullest worker, as an objective like :class:`Seconds`.

    A minibatch in flight holds a weight version of its own (weight stashing) and its activations;
    it ends with an update, which frees its gradients.
    """

    in_flight_matters = True

    def __init__(self, ranges: LayerRanges, optimizer_states: float) -> None:
        self._ranges = ranges
        self._optimizer_states = optimizer_states

    def of(self, first: Index, stop: Index, in_flight: int) -> Floats:
        """Return the bytes on one worker with these layers."""
        gradients = self._ranges.first_gradient_bytes(first, stop)
        tensors = in_flight + self._optimizer_states
        return self._ranges.worker_bytes(first, stop, tensors, in_flight, gradients=gradients)

    def worker(self, in_flight: int) -> Floats:
        size = self.of(*self._ranges.every(), in_flight)
        return np.where(self._ranges.possible, size, np.inf)

    def replicated(self, inner: Floats, level: int, members: int) -> Floats:
        """Return the matrix of one member: replicas are alike."""
        return inner

    def transfer(self, level: int) -> Floats:
        """Return zeros: links hold nothing."""
        return np.zeros(self._ranges.layers + 1)
