"""Clusters: described, the papers' and this machine's."""

import math
from collections.abc import Callable

import pytest
import torch

from pipekit import clusters
from pipekit.clusters import Calibrated, Cluster, Device, Level, flat, local, named
from pipekit.names import CLUSTERS

DEVICE = Device("chip", 2**30, {"float32": 1e12}, 1e11)
INSIDE = Level("NVLink", 4, 100e9)
BETWEEN = Level("network", 2, 1.25e9, latency_s=1e-5)
EIGHT = Cluster("two servers", DEVICE, (INSIDE, BETWEEN))


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [(0, 1, INSIDE), (3, 0, INSIDE), (3, 4, BETWEEN), (7, 0, BETWEEN), (4, 7, INSIDE)],
)
def test_level_between_is_the_innermost_that_joins_both(a: int, b: int, level: Level) -> None:
    assert EIGHT.level_between(a, b) is level
    assert EIGHT.bandwidth(a, b) == level.bandwidth


def test_three_levels_nest() -> None:
    rack = Level("rack", 3, 1e8)
    cluster = Cluster("racks", DEVICE, (INSIDE, BETWEEN, rack))
    assert cluster.workers == 24
    assert cluster.level_between(7, 8) is rack
    assert cluster.level_between(8, 15) is BETWEEN
    assert [cluster.member(worker, rack) for worker in (0, 7, 8, 23)] == [0, 0, 1, 2]


def test_a_calibrated_bandwidth_replaces_the_nominal_one_and_only_at_its_level() -> None:
    cluster = EIGHT.calibrated("network", 1e9, "Table 1, first row")
    assert cluster.bandwidth(0, 7) == 1e9
    assert cluster.bandwidth(0, 1) == 100e9
    assert cluster.levels[1].bandwidth == 1.25e9
    assert EIGHT.bandwidth(0, 7) == 1.25e9


def test_it_prints_sizes_and_rates_and_what_they_rest_on() -> None:
    assert str(EIGHT.calibrated("network", 1e9, "Table 1, first row")) == (
        "two servers: 8 x chip (1 GiB)\n"
        "  NVLink: joins 4 at 100 GB/s (800 Gbps) nominal\n"
        "  network: joins 2 at 1 GB/s (8 Gbps) by Table 1, first row; 1.25 GB/s (10 Gbps) nominal, "
        "latency 10 us"
    )


def test_flat_joins_any_workers_at_one_bandwidth() -> None:
    cluster = flat(5, 1e9, memory=100)
    assert (cluster.workers, cluster.device.memory_bytes) == (5, 100)
    assert {cluster.bandwidth(a, b) for a in range(5) for b in range(5) if a != b} == {1e9}
    assert math.isinf(flat(1, math.inf).device.memory_bytes)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan])
def test_no_bandwidth_is_refused(bandwidth: float) -> None:
    with pytest.raises(ValueError, match=r"'link'.* must be above zero.*: use math.inf"):
        flat(2, bandwidth)
    with pytest.raises(ValueError, match="must be above zero"):
        Calibrated(bandwidth, "a run")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Level("bus", 0, 1e9), "'bus''s width must be a whole number of at least 1, not 0"),
        (lambda: flat(2.5, 1e9), "width must be a whole number"),  # type: ignore[arg-type]
        (lambda: Level("bus", 2, 1e9, latency_s=-1), "latency_s must be 0 or a positive number"),
        (lambda: Calibrated(1e9, ""), "needs its origin"),
        (lambda: Device("chip", 0, {}, 1), "chip's memory_bytes must be above zero, not 0"),
        (lambda: Device("chip", 1, {}, 0), "chip's memory_bandwidth must be above zero, not 0"),
        (lambda: Device("chip", 1, {"float32": 0}, 1), r"chip's peak_flops\['float32'\] must be"),
        (lambda: Device("chip", 1, {}, 1, "MKL"), "library must .* not 'MKL'"),  # type: ignore[arg-type]
        (lambda: Cluster("nothing", DEVICE, ()), "has no level: give one, of width 1"),
        (lambda: Cluster("twins", DEVICE, (INSIDE, INSIDE)), "need different names"),
        (lambda: EIGHT.bandwidth(0, 8), "no worker 8: its 8 workers are numbered from 0"),
        (lambda: EIGHT.member(-1, INSIDE), "no worker -1"),
        (lambda: EIGHT.calibrated("PCIe", 1e9, "a run"), "no level 'PCIe': name one of .'NVLink'"),
        (lambda: clusters.pipedream_figure1("H100"), "gpu must be one of K80, .*, not 'H100'"),
        (lambda: named("cloud"), "cluster must be one of pipedream-a, .*, not 'cloud'"),
        (lambda: named("2bw-v100", 12), "ask for 16 workers in place of 12"),  # half a server
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


GBPS = 1e9 / 8


@pytest.mark.parametrize(
    ("cluster", "workers", "gib", "outermost_gbps"),
    [
        (clusters.pipedream_a(4), 4, 12, 25),
        (clusters.pipedream_b(), 8, 16, 10),
        (clusters.pipedream_figure1("K80"), 8, 12, 10),
        (clusters.pipedream_figure1("Titan X", 2), 2, 12, 10),
        (clusters.pipedream_figure1("V100", 32), 32, 16, 10),
        (clusters.gpipe_tpu_v2(), 8, 8, 496),
        (clusters.torchgpipe_p40(4), 4, 22, 126.03),
        (clusters.two_bw_v100(), 64, 16, 25),
        (clusters.two_bw_v100(1), 8, 16, 25),
    ],
    ids=lambda value: value.name if isinstance(value, Cluster) else None,
)
def test_presets_have_what_the_papers_print(
    cluster: Cluster, workers: int, gib: int, outermost_gbps: float
) -> None:
    assert cluster.workers == workers
    assert cluster.device.memory_bytes == gib * 2**30
    assert cluster.levels[-1].bandwidth == pytest.approx(outermost_gbps * GBPS, rel=1e-4)
    assert cluster.levels[-1].effective is None, "nothing is fitted"


def test_2bw_servers_have_nvlink_inside_and_a_slower_network_between() -> None:
    cluster = clusters.two_bw_v100()
    assert cluster.level_between(0, 7).name == "NVLink"
    assert cluster.level_between(7, 8).name == "network"
    assert cluster.bandwidth(0, 7) == 6 * 20e9, "what collectives attain of 25 GB/s a link"
    assert cluster.levels[0].bandwidth == 6 * 25e9
    assert cluster.bandwidth(7, 8) == 25e9 / 8


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "local"])
def test_every_name_is_a_cluster_of_as_many_workers_as_asked(name: str) -> None:
    assert named(name, 16).workers == 16
    assert named(name).workers >= 8


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_a_cpu_is_shared_out_among_workers() -> None:
    cluster = local(2)
    (link,) = cluster.levels
    assert cluster.workers == 2
    assert 1e8 < link.used_bandwidth < 1e13
    assert link.shared
    assert link.effective is not None
    assert "measured here" in str(cluster)
    assert "nominal" not in str(cluster)


@pytest.mark.usefixtures("no_gpu")
def test_measuring_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    local(1)
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_and_shared_out() -> None:
    gpus = torch.cuda.device_count()
    cluster, halves = local(), local(2 * gpus)
    assert (cluster.workers, halves.workers) == (gpus, 2 * gpus)
    assert halves.device.memory_bytes == cluster.device.memory_bytes / 2
