"""Time against memory: the shortest schedule found under each of several caps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import ScheduleError
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.judge import Found, Judge
from pipekit.searching.search import search


@dataclass(frozen=True)
class Tradeoff:
    """What memory buys.

    Attributes:
        caps: bytes that each worker may have, from the least.
        found: the shortest schedule found under each cap; None where nothing was found that fits.
        named: the named methods, whatever they need, the most frugal first.
    """

    caps: Sequence[float]
    found: Sequence[Found | None]
    named: Sequence[Found]

    @property
    def frame(self) -> pd.DataFrame:
        """A row each: kind ("found" or "named"), name, cap_bytes, peak_bytes and makespan_s.

        Bytes are of the fullest worker.
        """
        capped = [("found", cap, each) for cap, each in zip(self.caps, self.found, strict=True)]
        rows = [*capped, *(("named", float("nan"), each) for each in self.named)]
        return pd.DataFrame(
            [
                (kind, each.schedule.title, cap, max(each.peak_bytes), each.makespan_s)
                for kind, cap, each in rows
                if each is not None
            ],
            columns=["kind", "name", "cap_bytes", "peak_bytes", "makespan_s"],
        )


def tradeoff(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None = None,
    *,
    caps: int | Sequence[float] = 8,
    microbatches: int | None = None,
    workers: int | None = None,
    seconds: float = 2.0,
    **options: Any,
) -> Tradeoff:
    """Return the shortest schedules found under several caps: the Pareto curve.

    What was found under a lower cap is kept under a higher one, if nothing shorter is found there.

    Args:
        profile: what each layer costs.
        plan: which layers each stage has.
        cluster: the links; None: they cost nothing.
        caps: bytes of each worker; or how many, from what the most frugal named method needs to
            what the most lavish one does, each by the same factor above the one before.
        microbatches: of the batch; by default the plan's.
        workers: that share the stages; by default as many as stages.
        seconds: of each search.
        options: of :func:`pipekit.search`, such as ``seed`` or ``optimizer_states``.

    Raises:
        ValueError: the arguments do not fit together.
    """
    p, m = workers or len(plan.stages), microbatches or plan.microbatches
    states = options.get("optimizer_states", 0.0)
    judge = Judge(profile, plan, cluster, None, p, states)
    named = [
        judge.found(schedule)
        for schedule in named_schedules(len(plan.stages), p, m)
        if all(len(homes) == 1 for homes in schedule.stage_workers)
    ]
    named.sort(key=lambda each: max(each.peak_bytes))
    if isinstance(caps, int):
        least, most = (max(named[at].peak_bytes) for at in (0, -1))
        caps = [float(cap) for cap in np.geomspace(least, most, caps)]
    found: list[Found | None] = []
    best: Found | None = None
    for cap in sorted(caps):
        try:
            table = search(
                profile,
                plan,
                cluster,
                cap,
                microbatches=m,
                workers=p,
                seconds=seconds,
                **options,
            )
        except ScheduleError:  # nothing fits
            pass
        else:
            each = judge.found(table)
            best = each if best is None or each.makespan_s < best.makespan_s else best
        found.append(best)
    return Tradeoff(sorted(caps), found, named)
