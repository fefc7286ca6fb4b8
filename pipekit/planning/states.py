"""Where a profile may be cut: between a chain's layers, or at the states of a graph; and what
stages between the cuts cost.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.layer_ranges import Floats, LayerRanges, PairBytes, layer_costs
from pipekit.profiling import Profile, ValueProfile

MOST_STATES = 2000  # with more, the matrices of the dynamic program grow too large

Bools = NDArray[np.bool_]


class States:
    """All sets of layers that hold, with a layer, also what it reads: a pipeline cuts at them.

    PipeDream's released optimizer names each such set by its last layers, an antichain.  They are
    numbered by size, so that a set comes after all that it contains; of equally large ones the
    first layers in the profile's own order come last.  ``members`` says by ``[states, layers]``
    whether a state holds a layer.  ValueError if there are too many to plan.
    """

    def __init__(self, profile: Profile) -> None:
        layers = len(profile)
        self._without = _every_state(profile)
        self._sets = sorted(self._without, key=lambda held: (held.bit_count(), -held))
        if len(self._sets) > MOST_STATES:
            raise ValueError(
                f"the graph of {layers} layers can be cut in more than {MOST_STATES:,} ways, too "
                f"many to plan"
            )
        held = [[state >> layer & 1 for layer in range(layers)] for state in self._sets]
        self.members = np.array(held, bool)

    def __len__(self) -> int:
        return len(self._sets)

    @cached_property
    def within(self) -> Bools:
        """``[states, states]``: whether the first is a part of the second, and not all of it."""
        held = self.members.astype(np.float32)
        lacking = held @ (1 - held).T  # layers of the first that the second has not
        found: Bools = lacking == 0
        np.fill_diagonal(found, val=False)
        return found

    def peaks(self, height: Floats) -> Floats:
        """Return the largest height of the states between two, both included, by ``[first, stop]``.

        These are the states of the profile's order; infinite if there are none.
        """
        number = {held: place for place, held in enumerate(self._sets)}
        peaks = np.full((len(self), len(self)), np.inf)  # [stop, first]
        for stop, state in enumerate(self._sets):
            # Of the states that lack one of its layers, that which lacks the last one counts.
            for middle in sorted(self._without[state], reverse=True):
                way = peaks[number[middle]]
                np.copyto(peaks[stop], way, where=way < np.inf)
            np.maximum(peaks[stop], height[stop], out=peaks[stop])
            peaks[stop, stop] = height[stop]
        return peaks.T


class StateRanges(LayerRanges):
    """Costs of the layers between two states of a graph, which run in the profile's order.

    Every value that crosses a cut counts once, however many layers read it behind the cut.
    """

    def __init__(self, profile: Profile) -> None:
        self._states = states = States(profile)
        self._set_totals(profile, states.members.astype(float) @ layer_costs(profile))
        self.possible = states.within
        self.boundary_bytes = self._crossing(profile.values)
        self.boundary_bytes[0] = profile.input_bytes
        self._input_bytes, self._unsaved_output = np.zeros((2, len(states)))
        self._input_bytes[0] = profile.input_bytes
        if profile.relayed:  # a stage receives all that crosses where it starts
            self._input_bytes = self.boundary_bytes
            self._unsaved_output = self._crossing([v for v in profile.values if not v.saved])

    def layers_between(self, first: int, stop: int) -> Sequence[int]:
        members = self._states.members
        beyond: list[int] = np.flatnonzero(members[stop] & ~members[first]).tolist()
        return beyond

    @cached_property
    def pairs(self) -> PairBytes:
        height = self._totals["saved_bytes"] - self._totals["parameter_bytes"]
        lead = self._states.peaks(height)
        none = np.zeros((len(self._states), len(self._states)))
        return PairBytes(*((none, none) if self._profile.relayed else self._between()), lead)

    def _crossing(self, values: Iterable[ValueProfile]) -> Floats:
        """Return the bytes that cross each state: of values made within it and read behind it."""
        crossing = np.zeros(len(self._states))
        for value, made, read in self._held(values):
            crossing += value.bytes * (made & (read < len(value.users)))
        return crossing

    def _between(self) -> tuple[Floats, Floats]:
        """Return what enters each stage, and what leaves it and is not saved.

        A stage from state a to state b reads a value that was there in a exactly if b holds more of
        its users than a.
        """
        entering, leaving = np.zeros((2, len(self._states), len(self._states)))
        for value, made, read in self._held(self._profile.values):
            enters = made[:, None] & (read > read[:, None])
            entering += value.bytes * enters
            if not value.saved:
                # Whoever made it or passes it on holds it until it is backward.
                leaves = enters | (~made[:, None] & made)
                leaving += value.bytes * (leaves & (read < len(value.users)))
        return entering, leaving

    def _held(
        self, values: Iterable[ValueProfile]
    ) -> Iterator[tuple[ValueProfile, Bools, NDArray[np.int64]]]:
        """Yield each value, whether each state has made it, and how many of its users it holds."""
        members = self._states.members
        anything = np.arange(len(members)) > 0  # where the model's input is there
        for value in values:
            made = anything if value.source is None else members[:, value.source]
            yield value, made, members[:, value.users].sum(axis=1)


def ranges_of(profile: Profile) -> tuple[LayerRanges, str]:
    """Return the costs between the cuts of a chain or graph; and a remark on the cuts, if any."""
    edges = {(value.source, user) for value in profile.values for user in value.users}
    if profile.values and not edges >= set(pairwise(range(len(profile)))):
        try:
            return StateRanges(profile), ""
        except ValueError as error:
            remark = f" Only cuts in the order of the layers were looked at: {error}."
            return LayerRanges(profile), remark
    return LayerRanges(profile), ""


def _every_state(profile: Profile) -> dict[int, list[int]]:
    """Return the states as bits, or too many, each with those that lack one of its layers."""
    needs = [0] * len(profile)
    for value in profile.values:
        if value.source is not None:
            for user in value.users:
                needs[user] |= 1 << value.source
    without: dict[int, list[int]] = {0: []}
    recent = [0]
    while recent and len(without) <= MOST_STATES:
        larger = []
        for held in recent:
            for layer, needed in enumerate(needs):
                grown = held | 1 << layer
                if grown == held or needed & ~held:
                    continue
                if grown not in without:
                    without[grown] = []
                    larger.append(grown)
                without[grown].append(held)
        recent = larger
    return without
