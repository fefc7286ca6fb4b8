"""Which layers run on which workers: the planners of the papers, predicting in closed form."""

from pipekit.planning.balance import balance, balanced
from pipekit.planning.interleaved import interleaved
from pipekit.planning.pipedream import pipedream
from pipekit.planning.plan import PLANNERS, plan
from pipekit.planning.recomputation import layers_to_recompute
from pipekit.planning.sweep import parallel_pipelines, sweep

__all__ = [
    "PLANNERS",
    "balance",
    "balanced",
    "interleaved",
    "layers_to_recompute",
    "parallel_pipelines",
    "pipedream",
    "plan",
    "sweep",
]
