"""Where each worker's time of a recorded step went."""

import numpy as np
import pandas as pd

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
    another worker, the wait for the others.  What is behind the last pass or collective of all is
    between steps.

    Returns:
        A row a worker; columns: :data:`SHARES`; :data:`WAITING`, whose sum is ``waiting``; and
        :data:`AGAIN`.
    """
    operations, messages, passes = what_if.operations, what_if.messages, what_if.passes
    table, lasting_s = operations.table, what_if.lasting_s
    lane = table[~messages].assign(row=np.flatnonzero(~messages))
    lane = lane.sort_values(["step", "worker", "start_s"], kind="stable")
    rows, each = lane["row"].to_numpy(), lane.groupby(["step", "worker"], sort=False).ngroup()
    starts, ends = lane["start_s"].to_numpy(), lane["end_s"].to_numpy()
    free = lane["end_s"].groupby(each).cummax().groupby(each).shift(fill_value=0.0)
    gap = np.maximum(starts - free.to_numpy(), 0.0)
    is_pass, own = passes[rows], operations.seconds[rows]
    inside = np.maximum(ends - starts - own, 0.0)

    needs = operations.before[rows]
    sent = np.append(messages, False)[needs] * np.append(operations.seconds, 0.0)[needs]
    transfer = np.minimum(sent.max(axis=1), gap)
    launch = np.clip(operations.delays[rows], 0.0, gap - transfer)
    waited = gap - transfer - launch
    kind = lane["kind"].to_numpy()
    begins = is_pass & (pd.Series(is_pass, lane.index).groupby(each).cumsum() == 1).to_numpy()
    cause = np.where(kind == Op.FORWARD.name, "activation", "gradient")
    cause = np.where(begins, "warm-up", np.where(is_pass, cause, "sum"))

    worker = lane["worker"].to_numpy()
    index = np.unique(worker)
    found = pd.DataFrame(0.0, index=index, columns=[*SHARES, *WAITING, AGAIN])

    def add(column: str, values: Times, where: np.ndarray) -> None:
        total = pd.Series(np.where(where, values, 0.0)).groupby(worker).sum()
        found[column] += total.reindex(index).fillna(0.0)

    add("compute", own, is_pass)
    add(AGAIN, own, kind == RECOMPUTE)
    add("communication", transfer, is_pass)
    add("between_tasks", launch, is_pass & ~begins)
    add("between_steps", launch, is_pass & begins)
    launched = np.minimum(gap, what_if.between_steps[rows])
    add("between_steps", launched, ~is_pass)
    add("sum", gap - launched, ~is_pass)
    moves = lane["moves"].to_numpy(bool)
    optimizer = np.isin(kind, _OPTIMIZER)
    add("communication", own, moves & ~is_pass)
    add("optimizer", own, optimizer)
    add("between_steps", own, ~is_pass & ~moves & ~optimizer)
    for name in WAITING:
        add(name, waited + inside, is_pass & (cause == name))
    add("sum", inside, ~is_pass)
    return _to_the_end(found, lane, is_pass, lasting_s)


def _to_the_end(
    found: pd.DataFrame, lane: pd.DataFrame, is_pass: np.ndarray, lasting_s: Times
) -> pd.DataFrame:
    """Add what lies behind each worker's last operation: drain, then between steps."""
    keys = ["step", "worker"]
    last = lane.groupby(keys)["end_s"].max().unstack("worker")
    lasting = pd.Series(lasting_s, sorted(lane["step"].unique()))
    only_passes = lane[is_pass].groupby(keys)["end_s"].max().unstack("worker")
    drained = only_passes.max(axis=1)
    drain = (-last).add(drained, axis=0).clip(lower=0.0)
    behind = (-last).add(lasting, axis=0).clip(lower=0.0) - drain
    found["drain"] += drain.sum().reindex(found.index).fillna(0.0)
    found["between_steps"] += behind.clip(lower=0.0).sum().reindex(found.index).fillna(0.0)
    found["waiting"] = found[list(WAITING)].sum(axis=1)
    return found
