"""Table 1 with one thing changed at a time: which change turns which miss (all simulated)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import pandas as pd

from experiments.pipedream.cause_names import (
    ACTIVATIONS,
    GUESSED_LAYERS,
    NOMINAL,
    OWN_BANDWIDTH,
    PLAN,
    TIMES,
    TOO_FEW_IN_FLIGHT,
)
from experiments.pipedream.table1 import calibration, speeds, traffic
from experiments.pipedream.table1.predictions import Prediction, predict
from experiments.pipedream.table1.rows import CALIBRATED_ON, TABLE1, Setting
from experiments.study.costs import with_costs
from experiments.study.published_times import as_published, network_times
from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile

UNCHANGED = "none"
"""The cause of a row as it is, beside which a change counts only if it changes the value."""

INSTEAD = {
    NOMINAL: "the printed bandwidth",
    OWN_BANDWIDTH: "fitted on the row's own BSP speedup",
    ACTIVATIONS: "no larger than Table 1's 95 % leaves room for",
    GUESSED_LAYERS: "fitted on VGG16's row alone",
    TOO_FEW_IN_FLIGHT: "twice as many minibatches in flight",
    PLAN: "the paper's configuration, cut as well as can be",
    TIMES: "the network's seconds as others published them",
}
"""What is done instead, by cause."""


@dataclass(frozen=True)
class Change:
    """What a row of Table 1 comes to with one thing changed."""

    cause: str
    one: Prediction
    plan: Plan
    method: speeds.Method = speeds.pipelined

    @cached_property
    def bsp_speedup(self) -> float:
        """Data parallelism's speedup over one machine."""
        return calibration.bsp_speedup(self.one.profile, self.one.cluster)

    @cached_property
    def speedup(self) -> float:
        """The plan's."""
        return self.one.speedup(self.plan, self.one.cluster, self.method)

    @property
    def over_bsp(self) -> float:
        """The plan's over data parallelism's."""
        return self.speedup / self.bsp_speedup

    @property
    def config_ratio(self) -> float:
        """The printed configuration's time over that of the best plan, the larger of two ways."""
        return self.one.config_ratio

    @property
    def saved(self) -> float:
        """By how many percent fewer bytes the plan sends than data parallelism (exact)."""
        profile = self.one.profile
        bsp = speeds.data_parallel(profile, self.one.setting.workers)
        return 100 * traffic.reduction(traffic.sent(profile, self.plan), traffic.sent(profile, bsp))


def changes(one: Prediction) -> Iterator[Change]:
    """Yield a row as it is, and with each change that can be made to it."""
    yield Change(UNCHANGED, one, one.plan)
    nominal = replace(one, cluster=one.nominal)
    yield Change(NOMINAL, nominal, nominal.plan)
    yield Change(TOO_FEW_IN_FLIGHT, one, one.plan, speeds.twice_in_flight)
    if one.setting in TABLE1:
        yield Change(PLAN, one, one.paper_plan)
        own = replace(one, cluster=_fitted_on(one, one.setting))
        yield Change(OWN_BANDWIDTH, own, own.plan)
    known, *others = CALIBRATED_ON[one.setting.cluster]
    if known != one.setting and any(row.model == "s2vt" for row in others):
        without = replace(one, cluster=_fitted_on(one, known))
        yield Change(GUESSED_LAYERS, without, without.plan)
    if one.setting.model == "s2vt" and len(one.plan.stages) > 1:
        small = replace(one, profile=_with_printed_traffic(one))
        yield Change(ACTIVATIONS, small, small.plan)
    if (one.setting.model, one.nominal.device.name) in network_times():
        profile = as_published(one.profile, one.setting.model, one.nominal.device)
        timed = replace(one, profile=profile)
        yield Change(TIMES, timed, timed.plan)


@cache
def over_bsp_otherwise(row: Setting) -> dict[str, float]:
    """Return a row's speedup over data parallelism with each change, by its cause."""
    known = changes(predict(row))
    return {each.cause: each.over_bsp for each in known if each.cause != UNCHANGED}


def table(changed: Mapping[Setting, Sequence[Change]]) -> pd.DataFrame:
    """Return the plan and both speedups of each row under each change."""
    return pd.DataFrame(
        {
            "row": row.name,
            "cause": each.cause,
            "plan": each.plan.config,
            "BSP": each.bsp_speedup,
            "PipeDream": each.speedup,
        }
        for row, known in changed.items()
        for each in known
    )


def _with_printed_traffic(one: Prediction) -> Profile:
    """Return a profile whose activations make 5 % of what data parallelism sends.

    That is all that the printed reduction of 95 % leaves, in our plan.
    """
    bsp = traffic.sent(one.profile, speeds.data_parallel(one.profile, one.setting.workers))
    part = 0.05 * bsp.total / traffic.sent(one.profile, one.plan).activations
    return with_costs(one.profile, output_bytes=lambda layer: layer.output_bytes * part)


def _fitted_on(one: Prediction, row: Setting) -> Cluster:
    """Return a prediction's machines with the bandwidth that fits a single row's BSP speedup."""
    cell = calibration.cell_of(row)
    if row == one.setting:
        cell = cell._replace(profile=one.profile)
    bandwidth = calibration.effective([cell])
    level = one.nominal.levels[0].name
    return one.nominal.calibrated(level, bandwidth, f"BSP of {row.name}, Table 1")
