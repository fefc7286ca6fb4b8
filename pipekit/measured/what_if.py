"""Counterfactuals: what a recorded run would have taken, had one thing been otherwise; its shares.

A case is an array of seconds, one an operation; all cases are replayed at once.  The ideal run is
that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
section 3: each computation takes the mean of its kind, each communication the median.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pipekit.measured.messages import Mask, packed
from pipekit.measured.operations import Operations, Times
from pipekit.schedules import Op
from pipekit.traces import RECOMPUTE

SHARES = ("compute", "waiting", "communication", "between_tasks", "between_steps", "optimizer")
WAITING = ("warm-up", "activation", "gradient", "sum", "drain")
AGAIN = "recompute"  # the part of "compute" in which forwards are run again
OPTIMIZER = (Op.UPDATE.name, "optimizer")
_WORST = 0.03  # the share of workers that M_W makes ideal (OSDI 2025, section 4)


@dataclass(frozen=True)
class WhatIf(Operations):
    """Operations of recorded steps that last so long; ``steps`` of training may overlap."""

    lasting_s: Times
    steps: int

    @cached_property
    def ideal(self) -> Times:
        """The seconds of the ideal run."""
        kinds = pd.Series(self.seconds).groupby(self.kind)
        mean, median = (kinds.transform(name).to_numpy() for name in ("mean", "median"))
        found: Times = np.where(self.moves, median, mean)
        return found

    def mean_step(self, cases: Times) -> list[float]:
        """Return the mean step of [operations, cases] without launch delays, in seconds."""
        return [float(s) / self.steps for s in self.last_ends_s(cases).sum(axis=0)]

    @cached_property
    def slowdowns(self) -> dict[str, float]:
        """T_ori, T_ideal, S, M_S and M_W of the published analysis; NaN where nothing is slower."""
        worker, stage, passes = self.worker, self.stage, self.passes
        recorded, ideal = self.seconds, self.ideal
        # Its stages are workers of a pipeline in order, however many chunks of the model each has.
        first = np.full(worker.max() + 1, stage.max() + 1)  # of a worker without passes
        np.minimum.at(first, worker[passes], stage[passes])
        places, place = np.unique(first[worker[passes]]), first[worker]
        by_replica, replicas = pd.factorize(self.replica)
        by_place = len(replicas) + np.searchsorted(places, place)
        # In each case one replica or place is as recorded; of none, the last.  Half as many bytes
        # are enough to find the worst.
        cases = np.repeat(ideal.astype("float32")[:, None], len(replicas) + len(places) + 1, 1)
        rows = np.arange(len(worker))
        cases[rows, by_replica] = cases[rows, by_place] = recorded
        each = np.append(self.mean_step(cases)[:-1], np.inf)
        score = pd.Series(np.minimum(each[by_place], each[by_replica])).groupby(worker).min()
        worst = score.nlargest(math.ceil(_WORST * len(score))).index
        others = np.where(place == places[-1], ideal, recorded)
        least = np.where(np.isin(worker, worst), ideal, recorded)
        cases = np.stack([recorded, ideal, others, least], axis=1)
        t_ori, t_ideal, t_last, t_worst = self.mean_step(cases)
        lost = t_ori - t_ideal or math.nan
        return {
            "t_ori_s": t_ori,
            "t_ideal_s": t_ideal,
            "slowdown": t_ori / t_ideal,
            "m_s": (t_ori - t_last) / lost,
            "m_w": (t_ori - t_worst) / lost,
        }

    @cached_property
    def between_steps(self) -> Times:
        """[operations], the recorded launch delays that are not part of the pipeline.

        That is before a worker's first pass of a step, and before all that is no pass or message:
        of these the least of all workers, since the others wait for the slowest of them.
        """
        found = np.where(self.begins, self.delays, 0.0)
        rest = np.flatnonzero(~(self.passes | self.messages))
        step, kind, delays = self.step[rest], self.kind[rest], pd.Series(self.delays[rest])
        number = pd.Series(rest).groupby(packed(step, self.worker[rest], kind)).cumcount()
        found[rest] = delays.groupby(packed(step, kind, number)).transform("min")
        return found

    @cached_property
    def begins(self) -> Mask:
        """The first pass of each worker's step."""
        found = self.passes.copy()
        found[found] = ~self.pass_rows.duplicated(["step", "worker"])
        return found

    def step_s(self, *cases: Times) -> list[float]:
        """Return the mean step of some cases, with what was recorded between steps, in seconds."""
        return [float(s) / self.steps for s in self.replayed_s(*cases).sum(axis=0)]

    @cached_property
    def simulated_s(self) -> float:
        """The mean step as it is replayed from the recorded durations; see :meth:`step_s`."""
        return self.step_s(self.seconds)[0]

    def replayed_s(self, *cases: Times) -> Times:
        """Return [recorded steps, cases], the seconds of each step; see :meth:`step_s`."""
        ended = pd.Series(self.end_s).groupby(self.step).max().to_numpy()
        behind: Times = np.maximum(self.lasting_s - ended, 0.0)[:, None]  # the last operation
        return behind + self.last_ends_s(np.stack(cases, axis=1), self.between_steps)


def shares(what_if: WhatIf) -> pd.DataFrame:
    """Return the seconds of each worker's steps by what they went into.

    Before a pass a worker waits until the message that it needs is on its way (by payload; before
    its first one: warm-up), then for the transfer (communication); what is left until it begins is
    between tasks.  A collective waits until its last partner begins (sum), the rest of it is
    communication; before it lies what is launched between steps, and if that takes longer than on
    another worker, the wait for the others.  Behind a worker's last operation it waits until all
    passes have ended (drain); what is behind them is between steps.  Columns are :data:`SHARES`,
    :data:`WAITING`, whose sum is ``waiting``, and :data:`AGAIN`.
    """
    rows = np.flatnonzero(~what_if.messages)
    step, worker = what_if.step[rows], what_if.worker[rows]
    start, end = what_if.start_s[rows], what_if.end_s[rows]
    is_pass, own = what_if.passes[rows], what_if.seconds[rows]

    each = packed(step, worker)
    running = pd.Series(end).groupby(each).cummax()
    gap = np.maximum(start - running.groupby(each).shift(fill_value=0.0).to_numpy(), 0.0)
    inside = np.maximum(end - start - own, 0.0)
    sent = np.append(np.where(what_if.messages, what_if.seconds, 0.0), 0.0)
    transfer = np.minimum(sent[what_if.before[1, rows]], gap)
    launch = np.clip(what_if.delays[rows], 0.0, gap - transfer)
    launched = np.minimum(gap, what_if.between_steps[rows])
    waited = gap - transfer - launch + inside

    begins = what_if.begins[rows]
    forward, optimizer, again = (
        what_if.among(*kinds)[rows] for kinds in ([Op.FORWARD.name], OPTIMIZER, [RECOMPUTE])
    )
    moves = what_if.moves[rows] & ~is_pass
    of_step = pd.Series(end).groupby([step, worker]).max().unstack()
    drained = pd.Series(end[is_pass]).groupby(step[is_pass]).max().to_numpy()[:, None]
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
