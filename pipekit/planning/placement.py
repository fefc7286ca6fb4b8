"""Where parallel pipelines run, and which links they then use."""

import numpy as np
from numpy.typing import NDArray

from pipekit.clusters import Cluster
from pipekit.planning.layer_ranges import Floats

_Numbers = NDArray[np.int_]


class Placement:
    """Parallel pipelines on a cluster, the replicas of a stage being neighbours.

    Replica r of stage i is worker ``i * width + r``.  So the replicas of a stage share a server as
    far as they can, and their all-reduce its fast links (PipeDream-2BW, section 3.3).

    Args:
        cluster: with at least ``width * depth`` workers.
        width: pipelines, w in the paper.
        depth: stages, d in the paper.

    Attributes:
        reducing: seconds of each stage's all-reduce a byte of its parameters, shape ``(depth,)``.
            It is a ring: every replica sends 2 (w - 1) / w of the gradients, and the outermost
            level that joins the replicas sets the pace; the ring enters and leaves a server once.
        passing: seconds for a microbatch of every pipeline to go from each stage to the next, a
            byte of one, shape ``(depth - 1,)``.  Pipelines that leave one member of a level
            together share its link; on a shared medium all that use it take turns.
    """

    def __init__(self, cluster: Cluster, width: int, depth: int) -> None:
        self._cluster = cluster
        self._groups = [1, *(cluster.group_size(level) for level in cluster.levels)]
        self.reducing = self._reducing(width, depth)
        self.passing = self._passing(width, depth)

    def _reducing(self, width: int, depth: int) -> Floats:
        first = np.arange(depth) * width
        outermost = self._level_between(first, first + width - 1)
        a_byte = np.array([0.0, *(1 / level.used_bandwidth for level in self._cluster.levels)])
        return np.asarray(2 * (width - 1) / width * a_byte[outermost])

    def _passing(self, width: int, depth: int) -> Floats:
        source = np.arange((depth - 1) * width)
        stage = source // width
        crossed = self._level_between(source, source + width)
        seconds = np.zeros(depth - 1)
        for number, level in enumerate(self._cluster.levels, start=1):
            using = crossed == number
            for end in (source[using], source[using] + width):
                port = end // self._groups[number if level.shared else number - 1]
                flows = np.zeros((depth - 1, self._cluster.workers))
                np.add.at(flows, (stage[using], port), 1)
                seconds = np.maximum(seconds, flows.max(axis=1) / level.used_bandwidth)
        return seconds

    def _level_between(self, a: _Numbers, b: _Numbers) -> _Numbers:
        """Return the innermost level that joins two workers, from 1; 0 for one and the same."""
        return np.asarray(np.sum([a // size != b // size for size in self._groups], axis=0))
