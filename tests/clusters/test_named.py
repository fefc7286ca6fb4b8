import pytest

from pipekit.clusters import (
    named,
    pipedream_a,
    pipedream_figure1,
    two_bw_v100,
)
from pipekit.names import CLUSTERS


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "local"])
def test_every_name_is_a_cluster_of_as_many_workers_as_asked(name: str) -> None:
    assert named(name, 16).workers == 16
    assert named(name).workers >= 8


def test_names_mean_the_papers_clusters() -> None:
    assert named("pipedream-a") == pipedream_a()
    assert named("figure1-titan-x", 4) == pipedream_figure1("Titan X", 4)
    assert named("2bw-v100", 16) == two_bw_v100(2)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"cluster must be one of pipedream-a, .*, not 'cloud'"):
        named("cloud")


def test_half_a_server() -> None:
    with pytest.raises(ValueError, match="ask for 16 workers in place of 12"):
        named("2bw-v100", 12)
