"""Counterfactuals: what a recorded run would have taken, had one thing been otherwise.

A case is an array of seconds, one an operation; all cases are replayed at once.  The ideal run is
that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
section 3: each computation takes the mean of its kind, each communication the median.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured.operations import Operations, Times
from pipekit.measured.recognition import Recognition
from pipekit.names import METHODS
from pipekit.schedules import Op, Payload, Schedule, ScheduleError
from pipekit.schedules.clock import Walk, graph_needs
from pipekit.schedules.methods.by_name import METHODS as BY_NAME

_WORST = 0.03
"""The share of workers that M_W makes ideal (OSDI 2025, section 4)."""
_SLOW_LINK = 1.5
"""A link is slow if its messages take more than so many times the median of the other links."""


@dataclass(frozen=True)
class Cause:
    """Something that cost time, and what a run without it would save.

    Attributes:
        kind: one of KINDS.
        where: {"worker": 3}, {"stage": 3}, {"link": (0, 1)}, or None.
        saves_s: seconds a step.
        text: a sentence.
        seconds: of each operation without it; None if the operations are others.
    """

    kind: str
    where: dict[str, object] | None
    saves_s: float
    text: str
    seconds: Times | None = field(default=None, repr=False, compare=False)


KINDS = (
    "slow worker",
    "unequal stages",
    "slow last stage",
    "unequal microbatches",
    "links",
    "method",
    "between steps",
    "noise",
)

SLOW = frozenset({"slow worker", "unequal stages", "slow last stage"})
"""Kinds that may be the same passes, told otherwise."""


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
        names = [payload.value for payload in Payload]
        self.messages = np.array([any(name in kind for name in names) for kind in self.kind], bool)

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

    def replayed_s(self, *cases: Times) -> Times:
        """Return [recorded steps, cases], the seconds of each step; see :meth:`step_s`."""
        lasting = self.operations.lasting_s(np.stack(cases, axis=1), self.between_steps)
        return lasting + self._after[:, None]

    def causes(self, recognition: Recognition) -> list[Cause]:
        """Return what cost time, what saves most first."""
        found = [
            self._slow_worker(),
            self._stages(),
            self._last_stage(),
            self._microbatches(),
            self._links(),
            self._noise(),
        ]
        cases = [case for case in found if case is not None]
        recorded, *without = self.step_s(self.operations.seconds, *(case[3] for case in cases))
        causes = [
            Cause(kind, where, recorded - t, text, seconds)
            for (kind, where, text, seconds), t in zip(cases, without, strict=True)
        ]
        causes += [*self._method(recognition), self._between_steps(recorded)]
        causes = [cause for cause in causes if cause.saves_s > 1e-9 * recorded]
        return sorted(causes, key=lambda cause: -cause.saves_s)

    _Case = tuple[str, dict[str, object] | None, str, Times]

    def _scaled(self, factor: Times | float, where: NDArray[np.bool_]) -> Times:
        return np.where(where, self.operations.seconds * factor, self.operations.seconds)

    @cached_property
    def _by_worker(self) -> pd.Series:
        """How many times as long a worker takes for its passes as others with the same work.

        Others are the replicas of its stages; where there are none, all other workers.
        """
        rows = self.operations.table[self.passes]
        seconds = pd.Series(self.operations.seconds[self.passes], rows.index)
        mean = seconds.groupby([rows["stage"], rows["kind"], rows["worker"]]).mean().unstack()
        if (mean.notna().sum(axis=1) > 1).all():
            ratio = mean.div(mean.quantile(0.5, axis=1, interpolation="lower"), axis=0)
            return ratio.mean(axis=0)
        each = seconds.groupby([rows["kind"], rows["worker"]]).mean().unstack()
        total = each.sum(axis=0)
        return total / total.quantile(0.5, interpolation="lower")

    @cached_property
    def _by_stage(self) -> pd.Series:
        """How many times as long each stage takes as the median stage."""
        rows = self.operations.table[self.passes]
        seconds = pd.Series(self.operations.seconds[self.passes], rows.index)
        each = seconds.groupby([rows["kind"], rows["stage"]]).mean().unstack().sum(axis=0)
        return each / each.quantile(0.5, interpolation="lower")

    def _slow_worker(self) -> "_Case | None":
        ratio = self._by_worker
        worker = int(ratio.idxmax())
        if ratio[worker] <= 1 or (self._one_each and not self._updates_tell):
            return None
        here = (self.worker == worker) & (self.passes | (self.kind == Op.UPDATE.name))
        text = f"Worker {worker} takes {ratio[worker] - 1:.0%} longer than the others"
        case = self._scaled(1 / ratio[worker], here)
        return "slow worker", {"worker": worker}, text, case

    def _stages(self) -> "_Case | None":
        """Make all stages take the median's time, but for a slow last one, which is told apart."""
        ratio = self._by_stage
        last = int(ratio.index.max())
        others = ratio.drop(last) if ratio[last] > 1 else ratio
        stage = int(others.idxmax())
        if others[stage] <= 1 or (self._one_each and self._updates_tell):
            return None
        factor = 1 / pd.Series(self.stage).map(others).fillna(1.0).to_numpy()
        text = f"Stage {stage} takes {others[stage] - 1:.0%} longer than the median stage"
        return "unequal stages", {"stage": stage}, text, self._scaled(factor, self.passes)

    def _last_stage(self) -> "_Case | None":
        ratio = self._by_stage
        last = int(ratio.index.max())
        if ratio[last] <= 1 or (self._one_each and self._updates_tell):
            return None
        text = f"The last stage takes {ratio[last] - 1:.0%} longer than the median stage"
        here = self.passes & (self.stage == last)
        return "slow last stage", {"stage": last}, text, self._scaled(1 / ratio[last], here)

    @cached_property
    def _relative(self) -> pd.Series:
        """Of each pass, its seconds over the mean of its kind, stage and worker."""
        rows = self.operations.table[self.passes]
        seconds = pd.Series(self.operations.seconds[self.passes], rows.index)
        keys = [rows[name] for name in ("kind", "stage", "worker")]
        return seconds / seconds.groupby(keys).transform("mean")

    @cached_property
    def _by_microbatch(self) -> pd.Series:
        """How many times as long a microbatch's passes take as the mean microbatch's.

        Passes of one microbatch vary alike if it is longer, and each by itself if it is noise; the
        share of the variance between microbatches says how much of a mean to believe.
        """
        rows = self.operations.table[self.passes]
        keys = [rows[name] for name in ("step", "replica", "microbatch")]
        groups = self._relative.groupby(keys)
        mean, count = groups.transform("mean"), groups.transform("size")
        within = float(((self._relative - mean) ** 2).sum() / max(1, (len(rows) - groups.ngroups)))
        between = float((mean - 1).pow(2).mean())
        believed = np.clip(1 - within / count / max(between, 1e-300), 0, 1)
        return 1 + (mean - 1) * believed

    def _microbatches(self) -> "_Case | None":
        factor = np.ones(len(self.passes))
        factor[self.passes] = 1 / self._by_microbatch.to_numpy()
        spread = float(self._by_microbatch.std())
        text = f"Microbatches are unequal: their times vary by {spread:.0%}"
        return "unequal microbatches", None, text, self._scaled(factor, self.passes)

    def _noise(self) -> "_Case | None":
        factor = np.ones(len(self.passes))
        factor[self.passes] = (self._by_microbatch / self._relative.clip(lower=1e-9)).to_numpy()
        spread = float((self._relative - self._by_microbatch).std())
        text = f"Passes of one kind and stage vary by {spread:.0%} from one to the next"
        return "noise", None, text, self._scaled(factor, self.passes)

    def _links(self) -> "_Case | None":
        here = self.messages
        if not here.any():
            return None
        seconds = pd.Series(self.operations.seconds)
        link = self._link()
        median = seconds[here].groupby(link[here]).median()
        for slowest in [median.idxmax()] if len(median) > 1 else []:
            others = seconds[here & (link != slowest).to_numpy()].median()
            if median[slowest] > _SLOW_LINK * others:
                ends = tuple(map(int, str(slowest).split("-")))
                text = (
                    f"Messages between workers {ends[0]} and {ends[1]} take "
                    f"{median[slowest] / max(others, 1e-12):.3g} times as long as the others"
                )
                slow = here & (link == slowest).to_numpy()
                factor = float(others / median[slowest])
                return "links", {"link": ends}, text, self._scaled(factor, slow)
        return "links", None, "Messages take time", np.where(here, 0.0, self.operations.seconds)

    def _link(self) -> pd.Series:
        """Return for each message the two workers, lower first, as text."""
        table = self.operations.table
        rows = table[self.passes]
        home = rows.groupby(["replica", "stage"])["worker"].first()
        forward = np.array(["activation" in kind for kind in self.kind])
        made = table["stage"].to_numpy()
        used = made + np.where(forward, 1, -1)
        ends = [
            home.reindex(pd.MultiIndex.from_arrays([table["replica"], stage])).to_numpy()
            for stage in (made, used)
        ]
        low, high = np.fmin(*ends), np.fmax(*ends)
        return pd.Series([f"{a:.0f}-{b:.0f}" for a, b in zip(low, high, strict=True)])

    def _between_steps(self, recorded: float) -> Cause:
        operations = self.operations
        inside = self.passes | self.messages
        alone = self.mean_step(np.where(inside, operations.seconds, 0.0))[0]
        text = "Sums of gradients, the optimizer and what lies between steps take time"
        return Cause("between steps", None, recorded - alone, text)

    def _method(self, recognition: Recognition) -> list[Cause]:
        """Return the best other method that flushes, with the same stages and kinds of passes."""
        if recognition.schedule is None or not recognition.schedule.is_closed:
            return []
        own = recognition.schedule.before(recognition.microbatches)
        recorded = self._makespan(own)
        best, name = recorded, ""
        for other in METHODS:
            try:
                schedule = BY_NAME[other](recognition.stages, recognition.microbatches)
            except ScheduleError:
                continue
            if not schedule.is_closed or schedule.stage_workers != own.stage_workers:
                continue
            taken = self._makespan(schedule.before(recognition.microbatches))
            if taken < best:
                best, name = taken, other
        if not name:
            return []
        text = f"{name} with these durations leaves workers idle for less time"
        return [Cause("method", None, recorded - best, text)]

    @cached_property
    def _mean_pass(self) -> dict[tuple[str, int], float]:
        rows = self.operations.table[self.passes]
        seconds = pd.Series(self.operations.seconds[self.passes], rows.index)
        mean = seconds.groupby([rows["kind"], rows["stage"]]).mean()
        return {(kind, stage): float(value) for (kind, stage), value in mean.items()}

    def _makespan(self, schedule: Schedule) -> float:
        """Return a step's seconds by a schedule with mean passes and messages; inf without them."""
        graph = schedule.dependencies
        sent = (
            float(np.mean(self.operations.seconds[self.messages])) if self.messages.any() else 0.0
        )
        try:
            seconds = [
                0.0 if task.op is Op.UPDATE else self._mean_pass[task.op.name, task.stage]
                for task in graph.tasks
            ]
        except KeyError:
            return math.inf
        home = graph.worker_of
        needs = [
            tuple((n, sent if n >= 0 and home[n] != home[at] else 0.0) for n, _ in each)
            for at, each in enumerate(graph_needs(graph))
        ]
        return max(
            Walk([range(*each) for each in pairwise(graph.first)], seconds, needs).run().free
        )

    @cached_property
    def _one_each(self) -> bool:
        """Whether a slow worker and a heavy stage would be the same passes."""
        rows = self.operations.table[self.passes]
        pairs = rows[["stage", "worker"]].drop_duplicates()
        return bool(pairs["stage"].is_unique and pairs["worker"].is_unique)

    @cached_property
    def _updates_tell(self) -> bool:
        """Whether the slowest worker's updates take longer, too, as a heavy stage's need not."""
        updates = self.kind == Op.UPDATE.name
        seconds = pd.Series(self.operations.seconds[updates])
        mean = seconds.groupby(self.worker[updates]).mean()
        slow, excess = int(self._by_worker.idxmax()), self._by_worker.max() - 1
        there = slow in mean and mean.median() > 0
        return bool(there and mean[slow] / mean.median() - 1 > excess / 2)
