"""The states of small graphs, against every set of layers."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.planning.states import States
from pipekit.profiling import Profile
from tests.planning.graphs import closed_sets, graphs


def sets_of(states: States) -> list[frozenset[int]]:
    return [frozenset(np.flatnonzero(held).tolist()) for held in states.members]


@given(graphs(7))
def test_they_are_all_sets_closed_under_what_layers_read(profile: Profile) -> None:
    states = States(profile)
    found = sets_of(states)
    assert len(found) == len(states) == len(set(found))
    assert set(found) == set(closed_sets(profile))
    within = [[a < b for b in found] for a in found]
    assert states.within.tolist() == within
    assert not np.tril(states.within).any()  # what a state holds is numbered before it


@settings(deadline=None)
@given(graphs(5), st.data())
def test_peaks_are_the_lowest_of_all_orders(profile: Profile, data: st.DataObject) -> None:
    states = States(profile)
    found = sets_of(states)
    drawn = st.lists(st.integers(-9, 9), min_size=len(states), max_size=len(states))
    height = np.array(data.draw(drawn), float)
    peaks = states.lowest_peaks(height)
    number = {held: k for k, held in enumerate(found)}
    for a, first in enumerate(found):
        for b, stop in enumerate(found):
            if not first <= stop:
                assert peaks[a, b] == np.inf
                continue
            ways = [
                [number.get(first | set(order[:k]), -1) for k in range(len(order) + 1)]
                for order in permutations(stop - first)
            ]
            heights = [max(height[k] for k in way) for way in ways if -1 not in way]
            assert peaks[a, b] == min(heights)
            assert states.layers_between(a, b) == sorted(stop - first)
            lean = states.layers_between(a, b, peaks)
            passed = [number[first | set(lean[:k])] for k in range(len(lean) + 1)]
            assert max(height[k] for k in passed) == peaks[a, b]
