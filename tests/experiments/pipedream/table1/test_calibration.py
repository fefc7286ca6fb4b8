"""Bandwidths fitted on published cells."""

import math
from pathlib import Path

import pytest

from experiments.pipedream.table1 import calibration
from experiments.pipedream.table1.calibration import Cell
from experiments.pipedream.table1.rows import Setting
from experiments.study.costs import faster_links, stretched
from pipekit import Profile
from pipekit.clusters import flat

LAYERS = Profile.uniform(4, 0.01, 0.02, output_bytes=1e6, parameter_bytes=4e6)


@pytest.mark.parametrize("workers", [2, 4])
def test_data_parallelism_over_free_links_scales_perfectly(workers: int) -> None:
    assert calibration.bsp_speedup(LAYERS, flat(workers, float("inf"))) == pytest.approx(workers)


@pytest.mark.parametrize("speedup", [0.5, 1.47, 3.5])
def test_the_fitted_bandwidth_gives_the_published_speedup(speedup: float) -> None:
    four = flat(4, 1e9)
    bandwidth = calibration.effective([Cell(LAYERS, four, speedup)])
    linked = four.calibrated("link", bandwidth, "a test")
    assert calibration.bsp_speedup(LAYERS, linked) == pytest.approx(speedup, rel=1e-6)


def test_several_cells_are_met_in_the_geometric_mean() -> None:
    cells = [Cell(LAYERS, flat(4, 1e9), 2.0), Cell(LAYERS, flat(8, 1e9), 5.0)]
    bandwidth = calibration.effective(cells)
    ratios = [
        calibration.bsp_speedup(LAYERS, flat(cell.cluster.workers, bandwidth)) / cell.speedup
        for cell in cells
    ]
    assert math.prod(ratios) == pytest.approx(1, rel=1e-6)
    assert min(ratios) < 0.99


@pytest.mark.parametrize("speedup", [0.0, 4.0, 9.0])
def test_a_speedup_that_no_bandwidth_gives_is_refused(speedup: float) -> None:
    with pytest.raises(ValueError, match="no bandwidth gives a speedup"):
        calibration.effective([Cell(LAYERS, flat(4, 1e9), speedup)])


def test_compute_and_links_sped_up_alike_change_no_speedup() -> None:
    cluster = flat(4, 1e8)
    quick = calibration.bsp_speedup(stretched(LAYERS, 1 / 3), faster_links(cluster, 3))
    assert quick == pytest.approx(calibration.bsp_speedup(LAYERS, cluster))


def test_a_row_has_its_own_workers_and_the_bandwidth_of_its_cluster() -> None:
    sixteen, four = (calibration.calibrated(Setting("vgg16", workers, "A")) for workers in (16, 4))
    assert sixteen.workers == 16
    assert four.workers == 4
    assert sixteen.levels[0].used_bandwidth == four.levels[0].used_bandwidth
    assert "vgg16-4A" in str(sixteen)


def test_measured_profiles_may_take_the_place_of_estimated_ones(tmp_path: Path) -> None:
    LAYERS.save(tmp_path / "vgg16.json")
    setting = Setting("vgg16", 4, "A")
    assert calibration.profile_of(setting, str(tmp_path / "{model}.json")) == LAYERS
