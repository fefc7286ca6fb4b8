"""PipeDream's dynamic program: few cuts are planned at once, many in turn, and alike."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipekit.clusters import Cluster, Device, Level
from pipekit.planning import bottleneck, pipedream
from pipekit.planning.objectives import Cost, Links
from pipekit.profiling import Profile
from tests.planning.graphs import graphs
from tests.planning.profiles import profiles


@settings(max_examples=40, deadline=None)
@given(
    profiles(8) | graphs(6),
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.sampled_from([60.0, 200.0, math.inf]),
    st.sampled_from(["paper", "released"]),
    st.sampled_from(["one", "each"]),
    st.booleans(),
)
def test_plans_do_not_depend_on_how_many_cuts_are_few(
    profile: Profile, widths: list[int], memory: float, cost: Cost, links: Links, replicate: bool
) -> None:
    levels = tuple(Level(str(k), width, 1.0 / (k + 1)) for k, width in enumerate(widths))
    cluster = Cluster("any", Device("any", memory, {}, math.inf), levels)

    def found() -> object:
        try:
            return pipedream(profile, cluster, cost=cost, links=links, replicate=replicate)
        except ValueError as error:
            return str(error)

    at_once = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bottleneck, "_FEW_CUTS", 0)
        assert found() == at_once
