"""Clusters by the names that the command line knows."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from pipekit.clusters.cluster import Cluster
from pipekit.clusters.local import local
from pipekit.clusters.papers import (
    gpipe_tpu_v2,
    pipedream_a,
    pipedream_b,
    pipedream_figure1,
    torchgpipe_p40,
    two_bw_v100,
)

_SERVER = 8  # workers of one of PipeDream-2BW's servers


def named(name: str, workers: int | None = None) -> Cluster:
    """Return the cluster of this name, one of :data:`NAMED`.

    Args:
        name: say "pipedream-a".
        workers: how many; by default as many as the paper had, or this machine has.

    Raises:
        ValueError: there is no such cluster, or not with so many workers.
    """
    if name not in NAMED:
        raise ValueError(f"there is no cluster {name!r}: name one of {', '.join(NAMED)}")
    return NAMED[name]() if workers is None else NAMED[name](workers)


def _two_bw(workers: int = 8 * _SERVER) -> Cluster:
    if workers % _SERVER:
        whole = -(-workers // _SERVER) * _SERVER
        raise ValueError(
            f"2bw-v100 has servers of {_SERVER} workers: ask for {whole} workers in place of "
            f"{workers}"
        )
    return two_bw_v100(workers // _SERVER)


NAMED: Mapping[str, Callable[..., Cluster]] = MappingProxyType(
    {
        "pipedream-a": pipedream_a,
        "pipedream-b": pipedream_b,
        "figure1-k80": partial(pipedream_figure1, "K80"),
        "figure1-titan-x": partial(pipedream_figure1, "Titan X"),
        "figure1-v100": partial(pipedream_figure1, "V100"),
        "gpipe-tpu-v2": gpipe_tpu_v2,
        "torchgpipe-p40": torchgpipe_p40,
        "2bw-v100": _two_bw,
        "local": local,
    }
)
