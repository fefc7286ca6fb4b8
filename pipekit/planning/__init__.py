"""Which layers run on which workers: the planners of the papers, predicting in closed form."""

from pipekit.planning.balance import balance as balance
from pipekit.planning.balance import balanced as balanced
from pipekit.planning.interleaved import interleaved as interleaved
from pipekit.planning.pipedream import pipedream as pipedream
from pipekit.planning.plan import PLANNERS as PLANNERS
from pipekit.planning.plan import plan as plan
from pipekit.planning.recomputation import layers_to_recompute as layers_to_recompute
from pipekit.planning.sweep import parallel_pipelines as parallel_pipelines
from pipekit.planning.sweep import sweep as sweep
