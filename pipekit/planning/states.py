"""Where the profile of a graph may be cut: at sets of layers that hold what their layers read."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipekit.profiling import Profile

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

    def peaks(self, height: NDArray[np.float64]) -> NDArray[np.float64]:
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
