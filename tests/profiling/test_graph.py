"""Profiles of graphs: values along a chain of layers, and other orders."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given

from pipekit import Profile
from pipekit.profiling import LayerProfile, SkipProfile, ValueProfile
from tests.planning.graphs import crossing_bytes, graphs


def layer(name: str, forward_s: float = 1.0) -> LayerProfile:
    return LayerProfile(name, forward_s, 2.0, saved_bytes=3.0, parameter_bytes=4.0)


#   input -> a -> b ---> d      a's value is read by b, c and d; the second input by c
#            a -> c ---> d
LAYERS = tuple(layer(name) for name in "abcd")
VALUES = (
    ValueProfile(None, (0,), 5.0),
    ValueProfile(None, (2,), 6.0),
    ValueProfile(0, (3, 1, 2), 10.0),
    ValueProfile(1, (3,), 20.0, saved=False),
    ValueProfile(2, (3,), 40.0),
    ValueProfile(3, (), 80.0),
)
DIAMOND = Profile(LAYERS, 2, 11.0, values=VALUES)


def boundary_bytes(profile: Profile, first: int) -> float:
    """Return what enters a layer of a chain: the output before it, and the skips under way."""
    under_way = [skip for skip in profile.skips if skip.source < first <= skip.destination]
    return profile.boundary_bytes(first) + sum(skip.bytes for skip in under_way)


class TestTravel:
    def test_values_become_outputs_and_skips(self) -> None:
        assert [x.output_bytes for x in DIAMOND.layers] == [10.0, 0.0, 40.0, 80.0]
        assert all(x.saves_output for x in DIAMOND.layers)
        assert [replace(skip, name="") for skip in DIAMOND.skips] == [
            SkipProfile("", 0, 2, 6.0),  # the input, from the first stage
            SkipProfile("", 1, 2, 10.0),  # a's value, from one user to the next
            SkipProfile("", 2, 3, 10.0),
            SkipProfile("", 1, 3, 20.0, saved=False),
        ]
        assert len({skip.name for skip in DIAMOND.skips}) == len(DIAMOND.skips)

    @given(graphs(6))
    def test_every_value_crosses_a_cut_once(self, profile: Profile) -> None:
        for first in range(1, len(profile)):
            crossing = crossing_bytes(profile, frozenset(range(first)))
            assert boundary_bytes(profile, first) == crossing

    def test_outputs_and_skips_follow_from_the_values_whatever_was_given(self) -> None:
        given = Profile(
            tuple(replace(x, output_bytes=7.0) for x in LAYERS),
            2,
            11.0,
            skips=(SkipProfile("s", 0, 1, 9.0),),
            values=VALUES,
        )
        assert given == DIAMOND


class TestOrder:
    def test_branches_may_change_places(self) -> None:
        other = DIAMOND.in_order([0, 2, 1, 3])
        assert [x.name for x in other.layers] == ["a", "c", "b", "d"]
        assert [x.output_bytes for x in other.layers] == [10.0, 0.0, 0.0, 80.0]
        assert other.values[4] == ValueProfile(1, (3,), 40.0)
        assert other.in_order([0, 2, 1, 3]) == DIAMOND
        assert DIAMOND.in_order(()) is DIAMOND

    @given(graphs(4))
    def test_an_order_is_taken_exactly_if_layers_can_run_in_it(self, profile: Profile) -> None:
        reads = [
            (value.source, user)
            for value in profile.values
            for user in value.users
            if value.source is not None
        ]
        for order in permutations(range(len(profile))):
            if all(order.index(a) < order.index(b) for a, b in reads):
                again = profile.in_order(order)
                back = [order.index(layer) for layer in range(len(profile))]
                assert again.in_order(back) == profile
            else:
                with pytest.raises(ValueError, match="is not behind its source"):
                    profile.in_order(order)

    @pytest.mark.parametrize("order", [[0], [0, 1, 2, 2], [0, 1, 2, 4]])
    def test_an_order_names_each_layer_once(self, order: list[int]) -> None:
        with pytest.raises(ValueError, match="an order of 4 layers names each of them once"):
            DIAMOND.in_order(order)

    def test_a_chain_has_one_order(self) -> None:
        chain = Profile(LAYERS)
        assert chain.in_order([0, 1, 2, 3]) == chain
        with pytest.raises(ValueError, match="a chain: its layers have one order only"):
            chain.in_order([1, 0, 2, 3])


class TestErrors:
    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ((1, (1,), 1.0), "a value of 1 has the user 1, which is not behind its source"),
            ((1, (2, 0), 1.0), "has the user 0"),
            ((None, (-1,), 1.0), "a value of the model's input has the user -1"),
            ((-1, (0,), 1.0), "a value of -1: no such layer exists"),
            ((0, (1,), -1.0), r"bytes must be 0 or a positive number up to 1e\+100, not -1"),
            ((0, (1,), float("nan")), "bytes must be 0 or a positive number"),
            ((0, (), 1.0, False), "a value of 0 is kept for the backward"),
            ((None, (1,), 1.0, False), "input is kept for the backward"),
        ],
    )
    def test_values_lead_forward_and_have_bytes(self, value: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            ValueProfile(*value)
