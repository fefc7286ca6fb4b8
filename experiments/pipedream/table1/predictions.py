"""What planner and simulator say of a row of Table 1, before anything is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from experiments.pipedream.table1 import calibration, speeds
from experiments.pipedream.table1.best_cut import best_cut
from experiments.pipedream.table1.rows import (
    CALIBRATED_ON,
    TABLE1,
    Setting,
    printed,
    printed_number,
    replicas_of,
)
from pipekit.clusters import Cluster
from pipekit.planning import plan
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import Profile


@dataclass(frozen=True)
class Prediction:
    """A network on a cluster of effective bandwidth, with what follows from its profile."""

    setting: Setting
    profile: Profile
    cluster: Cluster

    @property
    def nominal(self) -> Cluster:
        """The workers with the bandwidth that the paper prints."""
        return self.setting.machines()

    @cached_property
    def compute_s(self) -> float:
        """Seconds a minibatch on one machine."""
        return speeds.compute_seconds(self.profile)

    @cached_property
    def plan(self) -> Plan:
        """The planner's, at the effective bandwidth."""
        return self.plan_on(self.cluster)

    @cached_property
    def nominal_plan(self) -> Plan:
        """The planner's, at the printed bandwidth."""
        return self.plan_on(self.nominal)

    @cached_property
    def paper_plan(self) -> Plan:
        """The configuration that Table 1 prints, with the best cut at the effective bandwidth."""
        return self._printed_on(self.cluster)

    @cached_property
    def config_ratios(self) -> tuple[float, float]:
        """The printed configuration's time over that of the best plan: by formula, simulated."""
        planned = self.paper_plan.predicted_s / self.plan.predicted_s
        ours, theirs = (self.speedup(each, self.cluster) for each in (self.plan, self.paper_plan))
        return planned, ours / theirs

    @property
    def config_ratio(self) -> float:
        """The larger of both."""
        return max(self.config_ratios)

    @cached_property
    def nominal_config_ratio(self) -> float:
        """The same at the printed bandwidth."""
        return self._printed_on(self.nominal).predicted_s / self.nominal_plan.predicted_s

    def plan_on(self, cluster: Cluster, cost: Cost = "paper", replicate: bool = True) -> Plan:
        """Return the planner's plan for a cluster, of straight pipelines if nothing replicates."""
        return plan(self.profile, cluster, cost=cost, replicate=replicate)

    def speedup(
        self, chosen: Plan, cluster: Cluster | None, method: speeds.Method = speeds.pipelined
    ) -> float:
        """Return the simulated speedup of a plan over one machine; without links if None."""
        return self.compute_s / speeds.simulated_seconds(self.profile, chosen, cluster, method)

    def _printed_on(self, cluster: Cluster) -> Plan:
        return best_cut(self.profile, cluster, replicas_of(printed(self.setting, "config")))


def predict(setting: Setting, files: str = "") -> Prediction:
    """Return what is predicted for a setting; ``files`` as for :func:`.calibration.profile_of`."""
    profile = calibration.profile_of(setting, files)
    return Prediction(setting, profile, calibration.calibrated(setting, files))


def calibrations(predictions: Iterable[Prediction]) -> pd.DataFrame:
    """Return the fitted bandwidths, and data parallelism's speedup (simulated) with and without."""
    return pd.DataFrame(
        {
            "row": one.setting.name,
            "fitted on": ", ".join(row.name for row in CALIBRATED_ON[one.setting.cluster]),
            "compute (ms)": 1e3 * one.compute_s,
            "weights (MB)": one.profile.parameter_bytes / 1e6,
            "nominal (Gbps)": one.cluster.levels[0].bandwidth * 8e-9,
            "effective (Gbps)": one.cluster.levels[0].used_bandwidth * 8e-9,
            "BSP, nominal": calibration.bsp_speedup(one.profile, one.nominal),
            "BSP, effective": calibration.bsp_speedup(one.profile, one.cluster),
            "BSP, paper": printed_number(one.setting, "bsp-speedup"),
        }
        for one in predictions
    )


def configurations(predictions: Iterable[Prediction]) -> pd.DataFrame:
    """Return the planner's configurations beside the paper's, by cost model and bandwidth."""
    return pd.DataFrame(
        {
            "row": one.setting.name,
            "paper": printed(one.setting, "config") if one.setting in TABLE1 else "–",
            "ours": one.plan.config,
            "layers": " ".join(map(str, one.plan.balance)),
            "released": one.plan_on(one.cluster, "released").config,
            "nominal": one.nominal_plan.config,
            "nominal, released": one.plan_on(one.nominal, "released").config,
            "paper's / ours (time)": one.config_ratio if one.setting in TABLE1 else None,
            "the same, nominal": one.nominal_config_ratio if one.setting in TABLE1 else None,
        }
        for one in predictions
    )
