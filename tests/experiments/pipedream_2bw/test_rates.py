import pytest

from experiments.pipedream_2bw import rates as throughput
from experiments.pipedream_2bw.systems import (
    FLUSH,
    GPIPE,
    INTER_LAYER,
    SYSTEMS,
    TWO_BW,
    Pipelines,
)
from pipekit.clusters import Cluster, Level, flat
from pipekit.clusters.papers import V100
from pipekit.profiling import LayerProfile, Profile

BLOCK = LayerProfile("1 Block", 1.0, 2.0, 8e6, 100, 40, True)
FREE = Pipelines(Profile((BLOCK,) * 4, rows=2), flat(4, float("inf")), 4, 8)
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


def test_tensor_model_parallelism_waits_for_six_all_reduces_a_block() -> None:
    levels = Level("inner", 2, 1e6), Level("outer", 4, 1e5)
    cluster = Cluster("two by four", V100, levels)
    job = Pipelines(FREE.profile, cluster, depth=2, microbatches=3)
    compute = 4 * PASSES / 2
    exchanged = 4 * 6 * 2 * (1 / 2) * 8e6 / 1e6
    gradients = 2 * 2 * (3 / 4) * (400 / 2) / 1e5  # two workers of a server share its link
    expected = 3 * (compute + exchanged) + gradients
    assert throughput.tensor_mp_seconds(job) == pytest.approx(expected)
