"""Which layers run on which workers: the planners of the papers.

:func:`plan` calls them by name.  Nothing here runs or simulates anything; a plan's predictions
follow from the profile and the cluster in closed form.
"""

from pipekit.planning.balance import balance, balanced
from pipekit.planning.parallel_pipelines import parallel_pipelines
from pipekit.planning.pipedream import pipedream
from pipekit.planning.plan import PLANNERS, plan
from pipekit.planning.sweep import sweep

__all__ = ["PLANNERS", "balance", "balanced", "parallel_pipelines", "pipedream", "plan", "sweep"]
