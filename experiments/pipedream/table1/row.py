"""A row of Table 1, as planned, simulated and emulated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from experiments import study
from experiments.pipedream.table1 import plans
from experiments.pipedream.table1.plans import Method, Sent, Setting
from experiments.pipedream.timelines import run_length, seconds_a_minibatch
from experiments.study.claims import Emulated
from pipekit.clusters import Cluster
from pipekit.engine import Run
from pipekit.planning import plan
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import model_parallel
from pipekit.simulation import simulate

MODEL_PARALLEL, BSP, STRAIGHT, PIPEDREAM = SYSTEMS = (
    "model parallel",
    "BSP",
    "straight pipeline",
    "PipeDream",
)
"""Figure 13's, the slowest first; Table 1 has the second and the last."""


class Ran(NamedTuple):
    """An emulated plan: a minibatch's seconds, and its bytes as the engine counted them."""

    timed: Emulated
    sent: Sent


def run(
    profile: Profile,
    plan: Plan,
    cluster: Cluster,
    minibatches: int,
    faster: float,
    repeats: int = 1,
    method: Method = plans.pipelined,
) -> Ran:
    count = run_length(plan.replicas, minibatches)
    table, runs = method(plan).take(count), list[Run]()

    def emulate(pace: float) -> float:
        runs.append(study.emulate_at_pace(table, profile, plan, cluster, faster * pace))
        return seconds_a_minibatch(runs[-1].trace, plan.replicas)

    expected = seconds_a_minibatch(simulate(table, profile, plan, cluster), plan.replicas)
    timed = study.emulated(emulate, expected, repeats)
    traffic = runs[0].traffic.assign(bytes=runs[0].traffic["bytes"] / count)
    sums = traffic["purpose"] == "weights"
    counted = (float(traffic.loc[kind, "bytes"].sum()) for kind in (sums, ~sums))
    return Ran(timed, Sent(*counted))


@dataclass(frozen=True)
class Row:
    """A network on a cluster of effective bandwidth, and how fast each system trains it.

    Plans are made by a ``cost`` for the links of ``planned_for``, or of the cluster; ``given``
    stands in for :attr:`plan`; ``late`` sums of gradients begin after a stage's backward. ``runs``
    are the emulated systems: all others are simulated.
    """

    setting: Setting
    profile: Profile
    cluster: Cluster
    planned_for: Cluster | None = None
    cost: Cost = "paper"
    given: Plan | None = None
    method: Method = plans.pipelined
    late: bool = False
    runs: Mapping[str, Ran] = field(default_factory=dict)

    @classmethod
    def of(cls, setting: Setting) -> "Row":
        """Return a setting's row, planned for the printed bandwidth (3.2)."""
        profile, cluster = plans.profile_of(setting), plans.calibrated(setting)
        return cls(setting, profile, cluster, setting.machines())

    @cached_property
    def compute_s(self) -> float:
        """Seconds a minibatch on one machine."""
        return plans.compute_seconds(self.profile)

    @cached_property
    def plan(self) -> Plan:
        """PipeDream's: the given one, or Table 1's if that is a pipeline, or our planner's."""
        pipeline = self.setting in plans.TABLE1 and len(self.paper_plan.stages) > 1
        return self.given or (self.paper_plan if pipeline else self.chosen)

    @cached_property
    def chosen(self) -> Plan:
        return self._planned()

    @cached_property
    def paper_plan(self) -> Plan:
        """The configuration that Table 1 prints, with the best cut that there is for it."""
        replicas, links = plans.printed_replicas(self.setting), self.planned_for or self.cluster
        return plans.best_cut(self.profile, links, replicas, self.cost)

    @cached_property
    def simulated(self) -> "Row":
        return replace(self, given=self.plan, runs={})

    def in_round(self, number: int | None) -> "Row":
        """Return the same with one emulation of each system; None: with the same simulations."""
        kept = {name: ran._replace(timed=ran.timed.only(number)) for name, ran in self.runs.items()}
        return replace(self, given=self.plan, runs=kept)

    def plan_of(self, system: str) -> Plan:
        if system == BSP:
            return plans.data_parallel(self.profile, self.setting.workers)
        return self.plan if system == PIPEDREAM else self._straight

    def method_of(self, system: str) -> Method:
        if system == MODEL_PARALLEL:  # section 5.3
            return lambda plan: model_parallel(len(plan.stages))
        return plans.pipelined if system == BSP else self.method

    def seconds(self, system: str) -> float:
        """Return a system's seconds a minibatch, emulated if it was, else simulated."""
        if system in self.runs:
            return self.runs[system].timed.seconds
        if system not in self._simulated_s:
            ran = self.profile, self.plan_of(system)
            profile, plan = plans.summed_late(*ran) if self.late else ran
            self._simulated_s[system] = (
                self.compute_s / plans.bsp_speedup(profile, self.cluster)
                if system == BSP
                else plans.simulated_seconds(profile, plan, self.cluster, self.method_of(system))
            )
        return self._simulated_s[system]

    def speedup(self, system: str = PIPEDREAM) -> float:
        return self.compute_s / self.seconds(system)

    def over_bsp(self) -> float:
        return self.seconds(BSP) / self.seconds(PIPEDREAM)

    def overhead(self, system: str = BSP) -> float:
        """Return the percentage of the time in which a system's workers do not compute."""
        return 100 * (1 - self.speedup(system) / self.setting.workers)

    def sent(self, system: str) -> Sent:
        """Return what a system sends a minibatch, as counted, or by the closed form."""
        ran = self.runs.get(system)
        return ran.sent if ran else plans.sent(self.profile, self.plan_of(system))

    def saved(self, once: bool = False) -> float:
        """Return by how many percent fewer bytes the plan sends than BSP; activations once."""
        ours, bsp = self.sent(PIPEDREAM), self.sent(BSP)
        return 100 * (1 - (ours.total - ours.activations / 2 * once) / bsp.total)

    def excess(self, *systems: str) -> float:
        """Return a minibatch's bytes that the engine counted beyond the closed form."""
        return sum(self.sent(name).total - self.simulated.sent(name).total for name in systems)

    @cached_property
    def config_ratios(self) -> tuple[float, float]:
        """The printed configuration's time over that of the planner's: by formula, simulated."""
        both = self.paper_plan, self.chosen
        theirs_s, best_s = (replace(self, given=each, runs={}).seconds(PIPEDREAM) for each in both)
        return self.paper_plan.predicted_s / self.chosen.predicted_s, theirs_s / best_s

    @cached_property
    def open_ratios(self) -> list[float]:
        """How many times as fast as BSP at both ends of what a minibatch may be."""
        profiles = map(self.profile.scaled, plans.MINIBATCHES)
        return [replace(self, profile=each, given=None, runs={}).over_bsp() for each in profiles]

    @cached_property
    def _straight(self) -> Plan:
        return self._planned(replicate=False)

    def _planned(self, replicate: bool = True) -> Plan:
        links = self.planned_for or self.cluster
        return plan(self.profile, links, cost=self.cost, replicate=replicate)

    @cached_property
    def _simulated_s(self) -> dict[str, float]:
        return {}
