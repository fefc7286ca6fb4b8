"""The rows of Table 1 as the ledger prints them, and bandwidths fitted on published cells."""

import math

import pytest

from experiments.pipedream.table1 import rows as table1
from experiments.pipedream.table1.rows import Cell
from pipekit import Profile
from pipekit.clusters import flat


def test_configurations_are_replicas_joined_by_hyphens() -> None:
    assert table1.replicas_of("9-5-1-1") == [9, 5, 1, 1]
    assert table1.replicas_of("8") == [8]


@pytest.mark.parametrize("text", ["", "2-", "0-1", "2 - 1", "2--1"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write replicas like"):
        table1.replicas_of(text)


LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=1e6, parameter_bytes=4e6)


@pytest.mark.parametrize("workers", [2, 4])
def test_data_parallelism_over_free_links_scales_perfectly(workers: int) -> None:
    assert table1.bsp_speedup(LAYERS, flat(workers, float("inf"))) == pytest.approx(workers)


@pytest.mark.parametrize("speedup", [0.5, 1.47, 3.5])
def test_the_fitted_bandwidth_gives_the_published_speedup(speedup: float) -> None:
    four = flat(4, 1e9)
    bandwidth = table1.effective([Cell(LAYERS, four, speedup)])
    linked = four.calibrated("link", bandwidth, "a test")
    assert table1.bsp_speedup(LAYERS, linked) == pytest.approx(speedup, rel=1e-6)


def test_several_cells_are_met_in_the_geometric_mean() -> None:
    cells = [Cell(LAYERS, flat(4, 1e9), 2.0), Cell(LAYERS, flat(8, 1e9), 5.0)]
    bandwidth = table1.effective(cells)
    ratios = [
        table1.bsp_speedup(LAYERS, flat(cell.cluster.workers, bandwidth)) / cell.speedup
        for cell in cells
    ]
    assert math.prod(ratios) == pytest.approx(1, rel=1e-6)
    assert min(ratios) < 0.99


@pytest.mark.parametrize("speedup", [0.0, 4.0, 9.0])
def test_a_speedup_that_no_bandwidth_gives_is_refused(speedup: float) -> None:
    with pytest.raises(ValueError, match="no bandwidth gives a speedup"):
        table1.effective([Cell(LAYERS, flat(4, 1e9), speedup)])
