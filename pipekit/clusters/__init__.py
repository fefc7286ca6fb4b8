"""Devices and the links between them: the papers' machines, this one, or any.

Sizes are in bytes, bandwidths in bytes per second, rates in FLOP per second, times in seconds.
"""

from pipekit.clusters.cluster import Calibrated, Cluster, Device, Level, flat
from pipekit.clusters.local import local
from pipekit.clusters.papers import (
    K80,
    P40,
    P100,
    TITAN_X,
    TPU_V2_CORE,
    V100,
    gpipe_tpu_v2,
    named,
    pipedream_a,
    pipedream_b,
    pipedream_figure1,
    torchgpipe_p40,
    two_bw_v100,
)

__all__ = [
    "K80",
    "P40",
    "P100",
    "TITAN_X",
    "TPU_V2_CORE",
    "V100",
    "Calibrated",
    "Cluster",
    "Device",
    "Level",
    "flat",
    "gpipe_tpu_v2",
    "local",
    "named",
    "pipedream_a",
    "pipedream_b",
    "pipedream_figure1",
    "torchgpipe_p40",
    "two_bw_v100",
]
