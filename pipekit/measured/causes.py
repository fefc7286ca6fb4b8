"""What cost a recorded run its time: cases without one thing each, and what they save."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured.operations import Times
from pipekit.measured.other_method import fastest
from pipekit.measured.recognition import Recognition
from pipekit.measured.what_if import WhatIf
from pipekit.schedules import Op, Payload

_SLOW_LINK = 1.5
"""A link is slow if its messages take more than so many times those of the median link."""


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

Where = dict[str, object] | None
Case = tuple[str, Where, str, Times]
"""A kind, where, a sentence, and the seconds of all operations without it."""


def causes(what_if: WhatIf, recognition: Recognition) -> list[Cause]:
    """Return what cost time, what saves most first."""
    cases = list(_Cases(what_if).all())
    seconds = what_if.operations.seconds
    recorded = what_if.simulated_s
    without = what_if.step_s(*(case[3] for case in cases))
    found = [
        Cause(kind, where, recorded - t, text, case)
        for (kind, where, text, case), t in zip(cases, without, strict=True)
    ]
    name, saves_s = fastest(what_if, recognition)
    text = f"{name} with these durations leaves workers idle for less time"
    found.append(Cause("method", None, saves_s, text))
    inside = what_if.passes | what_if.messages
    (alone,) = what_if.mean_step(np.where(inside, seconds, 0.0))
    text = "Sums of gradients, the optimizer and what lies between steps take time"
    found.append(Cause("between steps", None, recorded - alone, text))
    found = [cause for cause in found if cause.saves_s > 1e-9 * recorded]
    return sorted(found, key=lambda cause: -cause.saves_s)


class _Cases:
    """The cases of one recording in which operations take other times."""

    def __init__(self, what_if: WhatIf) -> None:
        self._what_if, self._all = what_if, what_if.operations.seconds
        self._rows = what_if.operations.table[what_if.passes]
        self._seconds = pd.Series(self._all[what_if.passes], self._rows.index)

    def all(self) -> Iterator[Case]:
        """Yield the cases that there are."""
        yield from self._slow()
        yield self._microbatches()
        yield from self._links()
        yield self._noise()

    def _passes_take(self, times: pd.Series) -> Times:
        """Return the seconds if each pass takes so many times its own."""
        seconds = self._all.copy()
        seconds[self._what_if.passes] *= times.to_numpy()
        return seconds

    def _scaled(self, factor: Times | float, where: NDArray[np.bool_]) -> Times:
        return np.where(where, self._all * factor, self._all)

    @cached_property
    def _by_worker(self) -> pd.Series:
        """How many times as long a worker takes for its passes as others with the same work.

        Others are the replicas of its stages; where there are none, all other workers, and it is as
        slow as the least slow of its stages.
        """
        rows = self._rows
        keys = [rows[name] for name in ("stage", "kind", "worker")]
        usual = self._seconds.groupby(keys).median().unstack()
        if (usual.notna().sum(axis=1) > 1).all():
            ratio = usual.div(usual.quantile(0.5, axis=1, interpolation="lower"), axis=0)
            return ratio.mean(axis=0)
        return self._over_median("worker", "stage").groupby("worker").min()

    @cached_property
    def _by_stage(self) -> pd.Series:
        """How many times as long each stage takes as the median stage."""
        return self._over_median("stage")

    def _over_median(self, *owner: str) -> pd.Series:
        """Return by owner its seconds over those that its passes take at the median owner of each.

        Of an even number it is the lower median, so that one of two can be slow.  What a pass takes
        is a median, too, so that a pause is none of the owner's slowness.
        """
        each = self._seconds.groupby([self._rows[name] for name in (*owner, "kind")])
        usual, count = each.median().unstack(), each.size().unstack()
        median = usual.quantile(0.5, interpolation="lower")
        return (usual * count).sum(axis=1) / (count * median).sum(axis=1)

    def _slow(self) -> Iterator[Case]:
        """Yield a slow worker, stages that are unequal, and a last one that is slow.

        Where a worker and its stage are the same passes, its updates say which of them it is.
        """
        passes, tells = self._what_if.passes, self._updates_tell
        if tells or not self._one_each:
            worker, times = int(self._by_worker.idxmax()), self._by_worker.max()
            here = self._what_if.worker == worker
            here &= passes | (self._what_if.kind == Op.UPDATE.name)
            text = f"Worker {worker} takes {times - 1:.0%} longer than the others"
            if times > 1:
                yield "slow worker", {"worker": worker}, text, self._scaled(1 / times, here)
        if tells and self._one_each:
            return
        ratio = self._by_stage
        last = int(ratio.index.max())
        others = ratio.drop(last) if ratio[last] > 1 else ratio
        for kind, slow, text in (
            ("unequal stages", others, f"Stage {others.idxmax()} takes"),
            ("slow last stage", ratio[[last]], "The last stage takes"),
        ):
            stage, times = int(slow.idxmax()), slow.max()
            factor = 1 / pd.Series(self._what_if.stage).map(slow).fillna(1.0).to_numpy()
            text += f" {times - 1:.0%} longer than the median stage"
            if times > 1:
                yield kind, {"stage": stage}, text, self._scaled(factor, passes)

    @cached_property
    def _relative(self) -> pd.Series:
        """Of each pass, its seconds over the mean of its kind, stage and worker."""
        rows, seconds = self._rows, self._seconds
        keys = [rows[name] for name in ("kind", "stage", "worker")]
        return seconds / seconds.groupby(keys).transform("mean")

    @cached_property
    def _by_microbatch(self) -> pd.Series:
        """How many times as long a microbatch's passes take as the mean microbatch's.

        Passes of one microbatch vary alike if it is longer, and each by itself if it is noise; the
        share of the variance between microbatches says how much of a mean to believe.
        """
        rows = self._rows
        keys = [rows[name] for name in ("step", "replica", "microbatch")]
        groups = self._relative.groupby(keys)
        mean, count = groups.transform("mean"), groups.transform("size")
        within = float(((self._relative - mean) ** 2).sum() / max(1, (len(rows) - groups.ngroups)))
        between = float((mean - 1).pow(2).mean())
        believed = np.clip(1 - within / count / max(between, 1e-300), 0, 1)
        return 1 + (mean - 1) * believed

    def _microbatches(self) -> Case:
        text = f"Microbatches are unequal: their times vary by {self._by_microbatch.std():.0%}"
        return "unequal microbatches", None, text, self._passes_take(1 / self._by_microbatch)

    def _noise(self) -> Case:
        usual = self._relative / self._by_microbatch
        rows = self._rows
        usual = usual.groupby([rows[n] for n in ("kind", "stage", "worker")]).transform("median")
        times = usual * self._by_microbatch / self._relative.clip(lower=1e-9)
        spread = (self._relative - self._by_microbatch).std()
        text = f"Passes of one kind and stage vary by {spread:.0%} from one to the next"
        return "noise", None, text, self._passes_take(times)

    def _links(self) -> Iterator[Case]:
        """Make slow links like the others; or, if all are alike, have messages take no time."""
        here = self._what_if.messages
        if not here.any():
            return
        link, seconds = self._link(), pd.Series(self._all[here])
        median = seconds.groupby(link).median()
        typical = float(median.quantile(0.5, interpolation="lower"))
        slow = median[median > _SLOW_LINK * typical]
        if slow.empty:
            yield "links", None, "Messages take time", np.where(here, 0.0, self._all)
            return
        factor = np.ones(len(here))
        factor[here] = pd.Series(link).map(typical / slow).fillna(1.0)
        one, other = divmod(int(slow.idxmax()), self._workers)
        times = slow.max() / max(typical, 1e-12)
        more = f" (slow links: {len(slow)})" if len(slow) > 1 else ""
        text = (
            f"Messages between workers {one} and {other} take {times:.3g} times as long as "
            f"others{more}"
        )
        yield "links", {"link": (one, other)}, text, self._scaled(factor, here)

    @property
    def _workers(self) -> int:
        return int(self._what_if.worker.max()) + 1

    def _link(self) -> NDArray[np.int64]:
        """Return for each message the lower of its workers times their number, and the higher."""
        table = self._what_if.operations.table[self._what_if.messages]
        home = self._rows.groupby(["replica", "stage"])["worker"].first()
        made = table["stage"].to_numpy()
        used = made + np.where(table["kind"].str.contains(Payload.ACTIVATION.value), 1, -1)
        one, other = (
            home.reindex(pd.MultiIndex.from_arrays([table["replica"], stage])).to_numpy()
            for stage in (made, used)
        )
        return np.asarray(np.fmin(one, other) * self._workers + np.fmax(one, other), np.int64)

    @cached_property
    def _one_each(self) -> bool:
        """Whether a slow worker and a heavy stage would be the same passes."""
        rows = self._rows
        pairs = rows[["stage", "worker"]].drop_duplicates()
        return bool(pairs["stage"].is_unique and pairs["worker"].is_unique)

    @cached_property
    def _updates_tell(self) -> bool:
        """Whether the slowest worker's updates take longer, too, as a heavy stage's need not."""
        updates = self._what_if.kind == Op.UPDATE.name
        seconds = pd.Series(self._all[updates])
        usual = seconds.groupby(self._what_if.worker[updates]).median()
        slow, excess = int(self._by_worker.idxmax()), self._by_worker.max() - 1
        there = slow in usual and usual.median() > 0
        return bool(there and usual[slow] / usual.median() - 1 > excess / 2)
