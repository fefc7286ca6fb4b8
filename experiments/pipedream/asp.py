"""ASP's seconds a minibatch in a steady state, its links with a server's bytes in a server's time.

Our engine's ASP has no parameter server and sends every gradient to every worker, as many times as
many bytes as there are workers: links are made as many times faster.
"""

from collections.abc import Callable

from experiments import study
from experiments.pipedream.table1.plans import data_parallel
from experiments.pipedream.table1.row import Row
from experiments.study.costs import faster_links
from pipekit import schedules
from pipekit.traces import Trace


def seconds_a_minibatch(run: Callable[..., Trace], row: Row, delay: int, minibatches: int) -> float:
    """Return seconds, of all workers together, once the pipeline of updates is full."""
    workers = row.setting.workers
    fill, drain = 2 * (delay + 1), delay + 1  # minibatches: as many are in flight as drain
    table = schedules.asp(workers, delay).take(fill + minibatches + drain)
    plan = data_parallel(row.profile, workers)
    trace = run(table, row.profile, plan, faster_links(row.cluster, workers))
    return study.mean_interval(trace.ends("BACKWARD", stage=0), fill - 1, fill - 1 + minibatches)
