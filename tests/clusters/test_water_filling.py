"""The judge of shared links, judged: known cases, and its two ways against each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clusters.water_filling import Sent, by_programmes, by_steps, ends


def test_the_textbook_line_of_links() -> None:
    """A flow over two links beside one on each, of which the second has more room."""
    uses = [{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}]
    for way in (by_programmes, by_steps):
        assert way(uses, [1, 1, 1], {0: 1.0, 1: 3.0}) == pytest.approx([0.5, 0.5, 2.5])


def test_a_weight_of_two_counts_as_two_flows() -> None:
    for way in (by_programmes, by_steps):
        assert way([{0: 1.0}, {0: 1.0}], [2, 1], {0: 3.0}) == pytest.approx([2, 1])


def test_two_connections_on_one_link_by_hand() -> None:
    """Alone until 1, half each until the shorter has gone, then alone again."""
    port = {0: 1.0}
    sent = [Sent(0, 200, port, "a"), Sent(1, 50, port, "b")]
    assert ends(sent, {0: 100.0}) == pytest.approx([2.5, 2.0])


def test_messages_of_one_connection_follow_one_another() -> None:
    port = {0: 1.0}
    sent = [Sent(0, 200, port, "a"), Sent(1, 50, port, "a"), Sent(1, 50, port, "a")]
    assert ends(sent, {0: 100.0}) == pytest.approx([2.0, 2.5, 3.0])


uses = st.dictionaries(st.integers(0, 3), st.sampled_from([0.5, 1.0, 2.0]), min_size=1)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(uses, st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=4),
    st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=4, max_size=4),
)
def test_both_ways_agree(flows: list[tuple[dict[int, float], float]], room: list[float]) -> None:
    used, weights = [use for use, _ in flows], [weight for _, weight in flows]
    capacity = dict(enumerate(room))
    expected = by_programmes(used, weights, capacity)
    assert by_steps(used, weights, capacity) == pytest.approx(expected, rel=1e-5)
