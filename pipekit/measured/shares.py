"""Where each worker's time of a recorded step went."""

import numpy as np
import pandas as pd

from pipekit.measured.messages import Mask, packed
from pipekit.measured.operations import Times
from pipekit.measured.what_if import WhatIf
from pipekit.schedules import Op
from pipekit.traces import RECOMPUTE

SHARES = ("compute", "waiting", "communication", "between_tasks", "between_steps", "optimizer")
WAITING = ("warm-up", "activation", "gradient", "sum", "drain")
AGAIN = "recompute"
"""The part of "compute" in which forwards are run again."""
_OPTIMIZER = (Op.UPDATE.name, "optimizer")


def shares(what_if: WhatIf) -> pd.DataFrame:
    """Return the seconds of each worker's steps by what they went into.

    Before a pass a worker waits until the message that it needs is on its way (by payload; before
    its first one: warm-up), then for the transfer (communication); what is left until it begins is
    between tasks.  A collective waits until its last partner begins (sum), the rest of it is
    communication; before it lies what is launched between steps, and if that takes longer than on
    another worker, the wait for the others.  Behind a worker's last operation it waits until all
    passes have ended (drain); what is behind them is between steps.

    Returns:
        A row a worker; columns: :data:`SHARES`; :data:`WAITING`, whose sum is ``waiting``; and
        :data:`AGAIN`.
    """
    operations = what_if.operations
    rows = np.flatnonzero(~operations.messages)
    lane = operations.table.take(rows)
    step, worker = lane["step"].to_numpy(), lane["worker"].to_numpy()
    start, end = lane["start_s"].to_numpy(), lane["end_s"].to_numpy()
    is_pass, own = operations.passes[rows], operations.seconds[rows]

    each = packed(step, worker)
    running = pd.Series(end).groupby(each).cummax()
    gap = np.maximum(start - running.groupby(each).shift(fill_value=0.0).to_numpy(), 0.0)
    inside = np.maximum(end - start - own, 0.0)
    sent = np.append(np.where(operations.messages, operations.seconds, 0.0), 0.0)
    transfer = np.minimum(sent[operations.before[rows, 1]], gap)
    launch = np.clip(operations.delays[rows], 0.0, gap - transfer)
    launched = np.minimum(gap, what_if.between_steps[rows])
    waited = gap - transfer - launch + inside

    passes = np.flatnonzero(is_pass)
    begins = np.zeros(len(rows), bool)
    begins[passes[np.unique(each[passes], return_index=True)[1]]] = True
    forward, optimizer, again = (
        operations.among(*kinds)[rows] for kinds in ([Op.FORWARD.name], _OPTIMIZER, [RECOMPUTE])
    )
    moves = operations.moves[rows] & ~is_pass
    of_step = pd.Series(end).groupby([step, worker]).max().unstack()
    drained = pd.Series(end[passes]).groupby(step[passes]).max().to_numpy()[:, None]
    drain = np.maximum(drained - of_step, 0.0)
    behind = np.maximum(what_if.lasting_s[:, None] - of_step, 0.0) - drain

    def by_worker(values: Times, where: Mask) -> Times:
        total = np.bincount(worker[where], values[where], minlength=worker.max() + 1)
        found: Times = total[of_step.columns].astype(float)
        return found

    found = pd.DataFrame(
        {
            "compute": by_worker(own, is_pass),
            "waiting": 0.0,
            "communication": by_worker(transfer, is_pass) + by_worker(own, moves),
            "between_tasks": by_worker(launch, is_pass & ~begins),
            "between_steps": by_worker(launch, begins)
            + by_worker(launched, ~is_pass)
            + by_worker(own, ~is_pass & ~moves & ~optimizer)
            + behind.clip(lower=0.0).sum(),
            "optimizer": by_worker(own, optimizer),
            "warm-up": by_worker(waited, begins),
            "activation": by_worker(waited, is_pass & ~begins & forward),
            "gradient": by_worker(waited, is_pass & ~begins & ~forward),
            "sum": by_worker(gap - launched + inside, ~is_pass),
            "drain": drain.sum(),
            AGAIN: by_worker(own, again),
        },
        index=of_step.columns,
    )
    return found.assign(waiting=found[list(WAITING)].sum(axis=1))
