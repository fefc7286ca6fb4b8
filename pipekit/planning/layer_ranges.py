"""What the layers between two cuts cost, and what a worker that holds them has to store."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.states import Bools, States
from pipekit.plans import Recompute, StagePlan
from pipekit.profiling import Profile, ValueProfile
from pipekit.units import bytes_text

Floats = NDArray[np.float64]
Index = Any
"""A cut's number, or an array of them; ``first`` and ``stop`` broadcast against each other."""
SUMS = ("forward_s", "backward_s", "update_s", "parameter_bytes", "buffer_bytes", "saved_bytes")
"""The costs of a layer that add up over the layers of a stage."""


class PairBytes(NamedTuple):
    """Bytes that depend on both cuts of a stage: ``[first, stop]`` each."""

    entering: Floats  # beside what enters every stage that starts at ``first``
    leaving: Floats  # beside what leaves every stage up to ``stop``, and no backward needs
    lead: Floats  # the most that the saved bytes before a cut within it exceed the parameters


class LayerRanges:
    """Costs of the layers between two cuts, which run in the profile's order, for one microbatch.

    Cut k of a chain is before layer k; the cuts of a graph are its ``states``.  ``layers`` is the
    number of the last cut.  ``boundary_bytes`` pass each cut: the model's input, or all values from
    before it that are read behind it, each once, as in PipeDream's optimizer.  ``possible`` says by
    ``[first, stop]`` whether the layers between two cuts can be a stage.
    """

    def __init__(self, profile: Profile, states: States | None = None) -> None:
        costs = np.array([attrgetter(*SUMS)(layer) for layer in profile.layers], float)
        cuts = len(costs) + 1 if states is None else len(states)
        self._states = states
        # What enters a stage that starts at a cut, whatever it holds; and what leaves one that
        # stops there, and no backward needs.
        self._input_bytes, self._unsaved_output = np.zeros((2, cuts))
        self._input_bytes[0] = profile.input_bytes
        if states is None:
            self._members = np.tri(cuts, len(costs), -1, bool)
            self.possible = np.triu(np.ones((cuts, cuts), bool), 1)
            totals = np.zeros((cuts, len(SUMS)))
            np.cumsum(costs, axis=0, out=totals[1:])
            for cut, layer in enumerate(profile.layers, start=1):
                self._input_bytes[cut] = layer.output_bytes
                self._unsaved_output[cut] = layer.output_bytes * (not layer.saves_output)
            self._beside = [
                ValueProfile(skip.source, (skip.destination,), skip.bytes, skip.saved)
                for skip in profile.skips
            ]
            self.boundary_bytes = self._input_bytes + self._crossing(self._beside)
        else:
            self._members, self.possible = states.members, states.within
            totals = states.members.astype(float) @ costs
            self._beside = [] if profile.relayed else [*profile.values]
            self.boundary_bytes = self._crossing(profile.values)
            self.boundary_bytes[0] = profile.input_bytes
            if profile.relayed:  # a stage receives all that crosses where it starts
                self._input_bytes = self.boundary_bytes
                self._unsaved_output = self._crossing([v for v in profile.values if not v.saved])
        self.layers = cuts - 1
        self._totals = dict(zip(SUMS, totals.T.copy(), strict=True))
        self._totals["compute_s"] = totals[:, :3].sum(axis=1)  # of both passes and the update

    def layers_between(self, first: int, stop: int) -> list[int]:
        """Return the layers between two cuts, as they stand in the profile."""
        members = self._members
        beyond: list[int] = np.flatnonzero(members[stop] & ~members[first]).tolist()
        return beyond

    @cached_property
    def pairs(self) -> PairBytes:
        """Made once it is asked for: without a limit memory does not matter.

        A stage between two cuts reads a value that was there at the first exactly if more of its
        users are before the second.
        """
        entering, leaving = np.zeros((2, self.layers + 1, self.layers + 1))
        for value, made, read in self._held(self._beside):
            enters = made[:, None] & (read > read[:, None])
            entering += value.bytes * enters
            if not value.saved:
                # Whoever made it or passes it on holds it until it is backward.
                leaves = enters | (~made[:, None] & made)
                leaving += value.bytes * (leaves & (read < len(value.users)))
        height = self._totals["saved_bytes"] - self._totals["parameter_bytes"]
        if self._states is not None:
            return PairBytes(entering, leaving, self._states.peaks(height))
        first, stop = self.every()
        lead = np.maximum.accumulate(np.where(first <= stop, height, -np.inf), axis=1)
        return PairBytes(entering, leaving, np.where(first <= stop, lead, 0.0))

    def _crossing(self, values: Iterable[ValueProfile]) -> Floats:
        """Return the bytes that cross each cut: of values made before it and read behind it."""
        crossing = np.zeros(len(self._members))
        for value, made, read in self._held(values):
            crossing += value.bytes * (made & (read < len(value.users)))
        return crossing

    def _held(
        self, values: Iterable[ValueProfile]
    ) -> Iterator[tuple[ValueProfile, Bools, NDArray[np.int64]]]:
        """Yield each value, whether it is made before each cut, and how many users are there."""
        anything = np.arange(len(self._members)) > 0  # where the model's input is there
        for value in values:
            made = anything if value.source is None else self._members[:, value.source]
            yield value, made, self._members[:, value.users].sum(axis=1)

    def total(self, name: str, first: Index, stop: Index) -> Floats:
        """Return one of :data:`SUMS`, or "compute_s": T_l with the optimizer's step."""
        total: Floats = self._totals[name][stop] - self._totals[name][first]
        return total

    def first_gradient_bytes(self, first: Index, stop: Index) -> Floats:
        """Return by how much gradients raise the bytes: they come as activations go."""
        parameters, saved = self._totals["parameter_bytes"], self._totals["saved_bytes"]
        rise: Floats = parameters[stop] - saved[stop] + self.pairs.lead[first, stop]
        return rise

    def worker_bytes(
        self,
        first: Index,
        stop: Index,
        tensors: Index,
        in_flight: Index,
        kept: Index | None = None,
        gradients: Floats | None = None,
    ) -> Floats:
        """Return the bytes on a worker that runs these layers as a stage, as a backward starts.

        ``tensors`` of the parameters' size are weight versions and the optimizer's state.  Of every
        microbatch ``in_flight`` there is the stage's input, with skips from other stages; of those
        ``kept``, by default all, also what layers save, and the output.  ``gradients`` are by
        default as large as the parameters.
        """
        parameters = self.total("parameter_bytes", first, stop)
        sent = self._unsaved_output[stop] + self.pairs.leaving[first, stop]
        kept = in_flight if kept is None else kept
        total: Floats = (
            tensors * parameters
            + self.total("buffer_bytes", first, stop)
            + in_flight * (self._input_bytes[first] + self.pairs.entering[first, stop])
            + kept * (self.total("saved_bytes", first, stop) + sent)
            + (parameters if gradients is None else gradients)
        )
        return total

    def every(self) -> tuple[Index, Index]:
        """Return ``first`` and ``stop`` that broadcast to all pairs of cuts, possible or not."""
        numbers = np.arange(self.layers + 1)
        return numbers[:, None], numbers[None, :]


def ranges_of(profile: Profile) -> tuple[LayerRanges, str]:
    """Return the costs between the cuts of a chain or graph; and a remark on the cuts, if any."""
    remark = ""
    edges = {(value.source, user) for value in profile.values for user in value.users}
    if profile.values and not edges >= set(pairwise(range(len(profile)))):
        try:
            return LayerRanges(profile, States(profile)), ""
        except ValueError as error:
            remark = f" Only cuts in the order of the layers were looked at: {error}."
    return LayerRanges(profile), remark


def stage_plans(
    balance: Sequence[int],
    seconds: Floats,
    memory: Floats,
    replicas: int = 1,
    recompute: Recompute = "never",
) -> tuple[StagePlan, ...]:
    """Return stages of so many layers each, which take so long and so many bytes of a worker."""
    stops = np.cumsum(balance)
    each = zip(stops - balance, stops, seconds, memory, strict=True)
    return tuple(
        StagePlan(int(a), int(b), replicas, recompute, float(s), float(m)) for a, b, s, m in each
    )


def exact_bytes(size: float) -> str:
    """Return a size for a message: exact, rounded up, and readable."""
    return f"{int(np.ceil(size)):,} bytes ({bytes_text(size)})"


def milliseconds(seconds: float) -> str:
    """Return a time for a message."""
    return f"{seconds * 1e3:.4g} ms"
