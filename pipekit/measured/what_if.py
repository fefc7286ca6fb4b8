"""Counterfactuals: what a recorded run would have taken, had one thing been otherwise.

A case is an array of seconds, one an operation; all cases are replayed at once.  The ideal run is
that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
section 3: each computation takes the mean of its kind, each communication the median.
"""

import math
from functools import cached_property

import numpy as np
import pandas as pd

from pipekit.measured.operations import MESSAGES, Operations, Times
from pipekit.schedules import Payload

_WORST = 0.03
"""The share of workers that M_W makes ideal (OSDI 2025, section 4)."""


class WhatIf:
    """The cases of one recording.

    Args:
        operations: of the recording.
        lasting_s: of each recorded step, in the operations' order of steps.
        steps: how many training steps these are, which may overlap.
    """

    def __init__(self, operations: Operations, lasting_s: Times, steps: int) -> None:
        self.operations, self.lasting_s, self._steps = operations, lasting_s, steps
        table = operations.table
        self.kind, self.worker = table["kind"].to_numpy(), table["worker"].to_numpy()
        received = table["kind"].map({f"recv {p.value}": p.step for p in Payload}).fillna(0)
        self.stage = (table["stage"] + received).to_numpy(int)  # of the worker's own
        self.passes = operations.passes
        self._mean = self.of_kind("mean")
        self.messages = table["kind"].isin(MESSAGES).to_numpy(bool)

    # The published analysis.

    def of_kind(self, what: str) -> Times:
        """Return for each operation the mean or median seconds of its kind."""
        seconds = pd.Series(self.operations.seconds)
        found: Times = seconds.groupby(self.kind).transform(what).to_numpy()
        return found

    @cached_property
    def ideal(self) -> Times:
        """The seconds of the ideal run."""
        return np.where(self.operations.moves, self.of_kind("median"), self._mean)

    def mean_step(self, *cases: Times) -> list[float]:
        """Return the mean step of some cases without launch delays, in seconds."""
        lasting = self.operations.lasting_s(np.stack(cases, axis=1))
        return [float(total) / self._steps for total in lasting.sum(axis=0)]

    @cached_property
    def slowdowns(self) -> dict[str, float]:
        """T_ori, T_ideal, S, M_S and M_W of the published analysis; NaN where nothing is slower."""
        recorded, ideal = self.operations.seconds, self.ideal
        table = self.operations.table
        stages, replicas = np.unique(self.stage[self.passes]), table["replica"].to_numpy()
        last = self.stage == stages[-1]
        where = [self.stage == s for s in stages] + [replicas == r for r in np.unique(replicas)]
        kept = [np.where(here, recorded, ideal) for here in where]
        t_ori, t_ideal, t_last, *each = self.mean_step(
            recorded, ideal, np.where(last, ideal, recorded), *kept
        )
        score: dict[int, float] = {}
        for worker in np.unique(self.worker):
            mine = self.worker == worker
            score[worker] = min(t for t, here in zip(each, where, strict=True) if here[mine].any())
        count = math.ceil(_WORST * len(score))
        worst = sorted(score, key=score.__getitem__, reverse=True)[:count]
        (t_worst,) = self.mean_step(np.where(np.isin(self.worker, worst), ideal, recorded))
        lost = t_ori - t_ideal or math.nan
        return {
            "t_ori_s": t_ori,
            "t_ideal_s": t_ideal,
            "slowdown": t_ori / t_ideal,
            "m_s": (t_ori - t_last) / lost,
            "m_w": (t_ori - t_worst) / lost,
        }

    # What the run would have taken.

    @cached_property
    def between_steps(self) -> Times:
        """The recorded launch delays that are no part of the pipeline, one an operation.

        That is before a worker's first pass of a step, and before all that is no pass or message:
        of these the least delay of all workers, since what only some of them wait for is not the
        launch but, at a barrier that was not recorded, the slowest of them.
        """
        table = self.operations.table
        delays = pd.Series(self.operations.delays)
        first = pd.Series(self.passes).groupby([table["step"], table["worker"]]).cumsum() == 1
        number = table.groupby(["step", "worker", "kind"]).cumcount()
        least = delays.groupby([table["step"], table["kind"], number]).transform("min")
        outside = np.where(self.passes | self.messages, 0.0, least)
        return np.where(first.to_numpy() & self.passes, delays, outside)

    @cached_property
    def _after(self) -> Times:
        """Of each recorded step, the seconds behind its last operation."""
        return np.maximum(self.lasting_s - self.operations.recorded_s, 0.0)

    def step_s(self, *cases: Times) -> list[float]:
        """Return the mean step of some cases, with what was recorded between steps, in seconds."""
        return [float(total) / self._steps for total in self.replayed_s(*cases).sum(axis=0)]

    @cached_property
    def simulated_s(self) -> float:
        """The mean step as it is replayed from the recorded durations; see :meth:`step_s`."""
        return self.step_s(self.operations.seconds)[0]

    def replayed_s(self, *cases: Times) -> Times:
        """Return [recorded steps, cases], the seconds of each step; see :meth:`step_s`."""
        lasting = self.operations.lasting_s(np.stack(cases, axis=1), self.between_steps)
        return lasting + self._after[:, None]
