"""The states of a graph of layers: which of its layers may have run when a stage ends."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipekit.profiling import Profile

MOST_STATES = 2000
"""With more, the matrices of the dynamic program (one number for each pair) grow too large."""
_MOST_COUNTED = 100_000

Bools = NDArray[np.bool_]


class TooManyStates(ValueError):
    """A graph can be cut in more ways than can be planned."""


class States:
    """All sets of layers that hold, with a layer, also what it reads: a pipeline cuts at them.

    PipeDream's released optimizer names each such set by its last layers, an antichain.  In a chain
    they are the layers 0 to k - 1.  They are numbered from the empty set to the set of all layers,
    by size, so that a set comes after all that it contains; of equally large ones the first layers
    in the profile's own order come last.

    Attributes:
        members: ``[states, layers]``, whether a state holds a layer.

    Raises:
        TooManyStates: the graph has more than :data:`MOST_STATES`.
    """

    def __init__(self, profile: Profile) -> None:
        layers = len(profile)
        self._needs, self._used_by = _dependencies(profile)
        without = self._every(layers)
        sets = sorted(without, key=lambda held: (held.bit_count(), -held))
        if len(sets) > MOST_STATES:
            raise TooManyStates(_too_many(len(sets), layers))
        self._sets, self._without = sets, without
        size = -(-layers // 8)
        bits = np.frombuffer(b"".join(held.to_bytes(size, "little") for held in sets), np.uint8)
        self.members: Bools = np.unpackbits(
            bits.reshape(len(sets), size), axis=1, count=layers, bitorder="little"
        ).astype(bool)

    def __len__(self) -> int:
        return len(self._sets)

    def _every(self, layers: int) -> dict[int, list[int]]:
        """Return every state as bits, with those that lack one of its layers."""
        ready = {0: sum(1 << layer for layer in range(layers) if not self._needs[layer])}
        without: dict[int, list[int]] = {0: []}
        recent = [0]
        while recent and len(without) <= _MOST_COUNTED:
            larger = []
            for held in recent:
                for layer in _bits(ready[held]):
                    grown = held | 1 << layer
                    if grown not in without:
                        next_ones = ready[held] & ~(1 << layer)
                        for user in self._used_by[layer]:
                            if not self._needs[user] & ~grown:
                                next_ones |= 1 << user
                        ready[grown] = next_ones
                        without[grown] = []
                        larger.append(grown)
                    without[grown].append(held)
            recent = larger
        return without

    @cached_property
    def _number(self) -> dict[int, int]:
        return {held: place for place, held in enumerate(self._sets)}

    @cached_property
    def _smaller(self) -> list[list[int]]:
        """For each state those that lack one of its layers: first those that lack a late one."""
        number = self._number
        return [[number[held] for held in sorted(self._without[state])] for state in self._sets]

    @cached_property
    def within(self) -> Bools:
        """``[states, states]``: whether the first is a part of the second, and not all of it."""
        held = self.members.astype(np.float32)
        lacking = held @ (1 - held).T  # layers of the first that the second has not
        found: Bools = lacking == 0
        np.fill_diagonal(found, val=False)
        return found

    def lowest_peaks(self, height: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each pair, how high one must climb from the first to the second.

        The layers between two states may run in several orders.  Each passes some states; its
        peak is the largest height among them, both ends included, and the lowest peak counts.

        Returns:
            ``[first, stop]``, infinite where ``first`` is no part of ``stop``.
        """
        peaks = np.full((len(self), len(self)), np.inf)  # [stop, first]
        for stop, smaller in enumerate(self._smaller):
            for middle in smaller:
                np.minimum(peaks[stop], peaks[middle], out=peaks[stop])
            np.maximum(peaks[stop], height[stop], out=peaks[stop])
            peaks[stop, stop] = height[stop]
        return peaks.T

    def layers_between(
        self, first: int, stop: int, peaks: NDArray[np.float64] | None = None
    ) -> list[int]:
        """Return the layers that ``stop`` has and ``first`` has not, in an order to run them.

        Args:
            first: a state.
            stop: a state that contains it.
            peaks: what :meth:`lowest_peaks` returned: the order is then one with the lowest peak;
                without them it is the profile's own.
        """
        if peaks is None:
            return list(_bits(self._sets[stop] & ~self._sets[first]))
        order: list[int] = []
        state = stop
        while state != first:
            smaller = next(s for s in self._smaller[state] if peaks[first, s] <= peaks[first, stop])
            order += _bits(self._sets[state] & ~self._sets[smaller])
            state = smaller
        return order[::-1]


def _dependencies(profile: Profile) -> tuple[list[int], list[list[int]]]:
    """Return the layers that each layer reads from, as bits, and those that read from it."""
    needs = [0] * len(profile)
    used_by: list[list[int]] = [[] for _ in profile.layers]
    for value in profile.values:
        if value.source is not None:
            for user in value.users:
                needs[user] |= 1 << value.source
                used_by[value.source].append(user)
    return needs, used_by


def _bits(held: int) -> list[int]:
    """Return the numbers of the bits that are set, from the lowest."""
    found = []
    while held:
        lowest = held & -held
        found.append(lowest.bit_length() - 1)
        held ^= lowest
    return found


def _too_many(count: int, layers: int) -> str:
    counted = f"more than {_MOST_COUNTED:,}" if count > _MOST_COUNTED else f"{count:,}"
    return (
        f"the graph of {layers} layers can be cut in {counted} ways, too many to plan (at most "
        f"{MOST_STATES:,}; merged(profile, 'branches') may have fewer)"
    )
