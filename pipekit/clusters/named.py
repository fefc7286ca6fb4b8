"""Clusters by the names that the command line knows."""

from pipekit.clusters.cluster import Cluster
from pipekit.clusters.papers import two_bw_v100
from pipekit.names import CLUSTERS

_SERVER = 8  # workers of one of PipeDream-2BW's servers


def named(name: str, workers: int | None = None) -> Cluster:
    """Return the cluster of this name, one of :data:`pipekit.names.CLUSTERS`.

    Args:
        name: say "pipedream-a".
        workers: how many; by default as many as the paper had, or this machine has.

    Raises:
        ValueError: there is no such cluster, or not with so many workers.
    """
    make = CLUSTERS.load(name)
    cluster: Cluster = make() if workers is None else make(workers)
    return cluster


def two_bw_workers(workers: int = 8 * _SERVER) -> Cluster:
    """Return PipeDream-2BW's V100s, by their number; raises ValueError for part of a server."""
    if workers % _SERVER:
        whole = -(-workers // _SERVER) * _SERVER
        raise ValueError(
            f"2bw-v100 has servers of {_SERVER} workers: ask for {whole} workers in place of "
            f"{workers}"
        )
    return two_bw_v100(workers // _SERVER)
