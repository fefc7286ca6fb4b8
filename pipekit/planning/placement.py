"""Where parallel pipelines run, and which links they then use."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from pipekit.clusters import Cluster
from pipekit.clusters.paths import Paths
from pipekit.planning.layer_ranges import Floats


class Placement:
    """Parallel pipelines on a cluster, the replicas of a stage being neighbours.

    Replica r of stage i is worker ``i * width + r``.  So the replicas of a stage share a server as
    far as they can, and their all-reduce its fast links (PipeDream-2BW, section 3.3).  What a
    message or a sum passes, and how fast, is the simulator's rule (:class:`.paths.Paths`).

    Args:
        cluster: with at least ``width * depth`` workers.
        width: pipelines, w in the paper.
        depth: stages, d in the paper.

    Attributes:
        reducing: seconds of each stage's all-reduce a byte of its parameters, shape ``(depth,)``,
            if it has its links to itself; in the cluster's way of summing.
        passing: seconds for a microbatch of every pipeline to go from each stage to the next, a
            byte of one, shape ``(depth - 1,)``.  All set out together, and share the links.
    """

    def __init__(self, cluster: Cluster, width: int, depth: int) -> None:
        self._paths, self._width = Paths(cluster), width
        # Stages that begin at the same place of their server use the same links of another one.
        self._period = cluster.group_size(cluster.levels[-2]) if len(cluster.levels) > 1 else 1
        self.reducing = self._of_each(self._reducing, depth)
        self.passing = self._of_each(self._passing, depth - 1)

    def _of_each(self, seconds: Callable[[int], float], stages: int) -> Floats:
        known: dict[int, float] = {}
        for first in range(0, stages * self._width, self._width):
            place = first % self._period
            if place not in known:
                known[place] = seconds(first)
        firsts = range(0, stages * self._width, self._width)
        return np.array([known[first % self._period] for first in firsts], dtype=float)

    def _reducing(self, first: int) -> float:
        if self._width == 1:
            return 0.0
        path = self._paths.all_reduce(range(first, first + self._width))
        return path.flow / path.alone

    def _passing(self, first: int) -> float:
        load = defaultdict[int, float](float)
        for source in range(first, first + self._width):
            for port, share in self._paths.message(source, source + self._width).ports:
                load[port] += share
        return max(share / self._paths.capacity[port] for port, share in load.items())
