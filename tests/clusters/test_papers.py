import pytest

from pipekit import clusters
from pipekit.clusters import Cluster, named
from pipekit.names import CLUSTERS

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


def test_a_gpu_that_figure_1_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu must be one of K80, Titan X, V100, not 'H100'"):
        clusters.pipedream_figure1("H100")


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "local"])
def test_every_name_is_a_cluster_of_as_many_workers_as_asked(name: str) -> None:
    assert named(name, 16).workers == 16
    assert named(name).workers >= 8


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"cluster must be one of pipedream-a, .*, not 'cloud'"):
        named("cloud")


def test_half_a_server() -> None:
    with pytest.raises(ValueError, match="ask for 16 workers in place of 12"):
        named("2bw-v100", 12)
