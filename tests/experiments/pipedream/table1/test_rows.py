"""The rows of Table 1 as the ledger prints them, and bandwidths fitted on published cells."""

import math

import pytest

from experiments.pipedream.table1 import rows as table1
from experiments.pipedream.table1.rows import Cell, Setting
from experiments.study.costs import faster_links, stretched
from pipekit import Profile
from pipekit.clusters import flat


def test_configurations_are_replicas_joined_by_hyphens() -> None:
    assert table1.replicas_of("9-5-1-1") == [9, 5, 1, 1]
    assert table1.replicas_of("8") == [8]


@pytest.mark.parametrize("text", ["", "2-", "0-1", "2 - 1", "2--1"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write replicas like"):
        table1.replicas_of(text)


def test_a_clusters_bandwidth_is_fitted_on_rows_of_its_own() -> None:
    assert len(table1.TABLE1) == 7
    for cluster, rows in table1.CALIBRATED_ON.items():
        assert {row.cluster for row in rows} == {cluster}
    cells = {cell.name for cell in table1.FITTED}
    assert cells == {"vgg16-4A", "vgg16-8B", "inception-8B"}
    assert set(table1.TABLE1) >= table1.FITTED


def test_the_table_is_read_from_the_ledger() -> None:
    row = Setting("inception-v3", 8, "B")
    assert row.name == "inception-8B"
    assert table1.printed(row, "config") == "7-1"
    assert table1.printed(row, "bsp-speedup") == "4.74"
    assert table1.printed_number(row, "bsp-speedup") == 4.74
    assert table1.printed_number(table1.THROUGHPUT[0], "bsp-speedup") is None


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


def test_compute_and_links_sped_up_alike_change_no_speedup() -> None:
    cluster = flat(4, 1e8)
    quick = table1.bsp_speedup(stretched(LAYERS, 1 / 3), faster_links(cluster, 3))
    assert quick == pytest.approx(table1.bsp_speedup(LAYERS, cluster))


def test_a_row_has_its_own_workers_and_the_bandwidth_of_its_cluster() -> None:
    sixteen, four = (table1.calibrated(Setting("vgg16", workers, "A")) for workers in (16, 4))
    assert sixteen.workers == 16
    assert four.workers == 4
    assert sixteen.levels[0].used_bandwidth == four.levels[0].used_bandwidth
    assert "vgg16-4A" in str(sixteen)
