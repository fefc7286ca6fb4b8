from types import SimpleNamespace
from typing import Any

import pytest

from experiments.pipedream_2bw.systems import (
    FLUSH,
    GPIPE,
    INTER_LAYER,
    SYSTEMS,
    TWO_BW,
    Pipelines,
)
from experiments.pipedream_2bw.throughput import rates as throughput
from pipekit.clusters import Cluster, Level, flat
from pipekit.clusters.papers import V100
from pipekit.profiling import LayerProfile, Profile
from pipekit.simulation import simulate

BLOCK = LayerProfile("1 Block", 1.0, 2.0, 8e6, 100, 40, True)
FREE = Pipelines(Profile((BLOCK,) * 4, rows=2), flat(4, float("inf")), 4, 1, 8)
PASSES = 1 + 1 + 2  # forward, forward again, backward


def test_equal_stages_take_what_the_closed_forms_say() -> None:
    m, d = 8, 4
    expected = {
        INTER_LAYER: m * d * PASSES,
        GPIPE: (m + d - 1) * PASSES,
        FLUSH: (m + d - 1) * PASSES,
        TWO_BW: m * PASSES,
    }
    for system, seconds in expected.items():
        assert throughput.simulated(FREE, system) == pytest.approx(seconds)
    table = throughput.rates([FREE], SYSTEMS)
    assert table.loc[16, FLUSH] == pytest.approx(16 / expected[FLUSH])


def test_recomputing_while_waiting_takes_the_forwards_off_the_way_back() -> None:
    """Only the last of the stages that turn a microbatch around has no time to recompute in."""
    assert throughput.recomputed_early(FREE, INTER_LAYER) == pytest.approx(8 * (4 * 3 + 1))
    assert throughput.recomputed_early(FREE, TWO_BW) == pytest.approx(8 * PASSES)


def test_tensor_model_parallelism_waits_for_six_all_reduces_a_block() -> None:
    levels = Level("inner", 2, 1e6), Level("outer", 4, 1e5)
    cluster = Cluster("two by four", V100, levels)
    job = Pipelines(FREE.profile, cluster, depth=2, width=4, microbatches=3)
    compute = 4 * PASSES / 2
    exchanged = 4 * 6 * 2 * (1 / 2) * 8e6 / 1e6
    gradients = 2 * 2 * (3 / 4) * (400 / 2) / 1e5  # two workers of a server share its link
    expected = 3 * (compute + exchanged) + gradients
    assert throughput.tensor_mp_seconds(job) == pytest.approx(expected)


def test_tensor_model_parallelism_over_servers_has_their_links() -> None:
    inside, across = (throughput.tensor_mp_rate("2.2B", ways, 2048, 8) for ways in (8, 16))
    assert across < inside / 5


def test_an_emulation_is_of_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    paces = []

    def instead(table: Any, profile: Any, plan: Any, cluster: Any, faster: float) -> Any:
        paces.append(faster)
        return SimpleNamespace(trace=simulate(table, profile, plan, cluster))

    monkeypatch.setattr(throughput, "emulate_at_pace", instead)
    slow = throughput.on_links(FREE, "link", 1e7)
    for system in (FLUSH, TWO_BW):
        expected = throughput.simulated(slow, system)
        assert expected > throughput.simulated(FREE, system)
        assert throughput.emulated(slow, system, faster=7.0) == pytest.approx(expected)
    assert paces == [7, 7]
