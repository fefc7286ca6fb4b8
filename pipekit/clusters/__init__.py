"""Devices and the links between them: the papers' machines, this one, or any.

Sizes are in bytes, bandwidths in bytes per second, rates in FLOP per second, times in seconds.
"""

from pipekit.clusters.cluster import Calibrated as Calibrated
from pipekit.clusters.cluster import Cluster as Cluster
from pipekit.clusters.cluster import Device as Device
from pipekit.clusters.cluster import Level as Level
from pipekit.clusters.cluster import flat as flat
from pipekit.clusters.local import local as local
from pipekit.clusters.papers import K80 as K80
from pipekit.clusters.papers import P40 as P40
from pipekit.clusters.papers import P100 as P100
from pipekit.clusters.papers import TITAN_X as TITAN_X
from pipekit.clusters.papers import TPU_V2_CORE as TPU_V2_CORE
from pipekit.clusters.papers import V100 as V100
from pipekit.clusters.papers import gpipe_tpu_v2 as gpipe_tpu_v2
from pipekit.clusters.papers import named as named
from pipekit.clusters.papers import pipedream_a as pipedream_a
from pipekit.clusters.papers import pipedream_b as pipedream_b
from pipekit.clusters.papers import pipedream_figure1 as pipedream_figure1
from pipekit.clusters.papers import torchgpipe_p40 as torchgpipe_p40
from pipekit.clusters.papers import two_bw_v100 as two_bw_v100
