"""Rows of Table 1: planned, simulated and emulated, with one thing changed, and claims of them."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, wraps
from typing import Any, NamedTuple, TypeVar

from experiments import pipedream as names
from experiments import study
from experiments.pipedream.table1 import plans
from experiments.pipedream.table1.plans import EIGHT, FOUR, S2VT, Method, Sent, Setting, calibrated
from experiments.pipedream.timelines import run_length, seconds_a_minibatch
from experiments.study.claims import Emulated
from experiments.study.costs import estimated, faster_links
from pipekit.clusters import Cluster
from pipekit.engine import Run
from pipekit.models import PUBLISHED
from pipekit.planning import plan
from pipekit.planning.objectives import Cost
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.progress import progress_bar
from pipekit.schedules import model_parallel
from pipekit.simulation import simulate

MODEL_PARALLEL, BSP, STRAIGHT, PIPEDREAM = SYSTEMS = (
    "model parallel",
    "BSP",
    "straight pipeline",
    "PipeDream",
)
"""Figure 13's, the slowest first; Table 1 has the second and the last."""

FREE = 1e18  # bytes/s of links that take no time


class Ran(NamedTuple):
    """An emulated plan: a minibatch's seconds, and its bytes as the engine counted them."""

    timed: Emulated
    sent: Sent


@dataclass(frozen=True, eq=False)
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
    @cache
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

    @cached_property
    def otherwise(self) -> dict[names.Change, "Row"]:
        """The row, simulated, with each change that can be made to it."""
        kept, planned = self.simulated, replace(self, given=None, runs={})
        setting, machines = self.setting, self.setting.machines()
        free = machines.calibrated(machines.levels[0].name, FREE, "links that take no time")
        on_server = calibrated(setting, sums="parameter server")
        changes = {
            names.NOMINAL: replace(kept, cluster=machines),
            names.LINK_TIME: replace(kept, cluster=free),
            names.DUPLEX: replace(kept, cluster=faster_links(self.cluster, 0.5)),
            names.OVERLAP: replace(kept, late=True),
            names.SHARDS: replace(kept, cluster=on_server),
            names.TOO_FEW_IN_FLIGHT: replace(kept, method=plans.twice_in_flight),
            names.LATE_SUMS: replace(kept, method=plans.sums_a_round_late),
            names.PLANNED_FOR: replace(planned, planned_for=None),
            names.COST: replace(planned, cost="released"),
        }
        if setting.cluster == S2VT.cluster:
            on = (*plans.CALIBRATED_ON[setting.cluster], S2VT)
            changes[names.KNOWN_LAYERS] = replace(kept, cluster=calibrated(setting, on))
        if setting in plans.TABLE1:
            own = calibrated(setting, (setting,))
            changes[names.PLAN] = replace(kept, given=self.chosen)
            changes[names.OWN_BANDWIDTH] = replace(kept, cluster=own)
        if (roofline := plans.roofline(setting)) != plans.profile_of(setting):
            changes[names.TIMES] = replace(planned, profile=roofline)
        if setting == S2VT:
            rows, sample = names.ROWS["s2vt"], PUBLISHED["s2vt"].sample
            other = estimated(plans.without_embeddings, lambda: sample(rows), machines.device)
            changes[names.EMBEDDINGS] = replace(planned, profile=other)
        return changes

    def changed(self, change: names.Change | None = None) -> "Row":
        """Return the row, simulated, with a change if it can have that."""
        return self.simulated if change is None else self.otherwise.get(change, self.simulated)

    def plan_of(self, system: str) -> Plan:
        if system == BSP:
            return plans.data_parallel(self.profile, self.setting.workers)
        return self.plan if system == PIPEDREAM else self._planned(replicate=False)

    def method_of(self, system: str) -> Method:
        if system == MODEL_PARALLEL:  # section 5.3
            return lambda plan: model_parallel(len(plan.stages))
        return plans.pipelined if system == BSP else self.method

    def ran(self, system: str, minibatches: int, faster: float, repeats: int = 1) -> Ran:
        """Emulate a system in time that runs ``faster``, beside its own simulation."""
        plan, links = self.plan_of(system), self.cluster
        count = run_length(plan.replicas, minibatches)
        table, runs = self.method_of(system)(plan).take(count), list[Run]()

        def emulate(pace: float) -> float:
            runs.append(study.emulate_at_pace(table, self.profile, plan, links, faster * pace))
            return seconds_a_minibatch(runs[-1].trace, plan.replicas)

        expected = seconds_a_minibatch(simulate(table, self.profile, plan, links), plan.replicas)
        timed = study.emulated(emulate, expected, repeats)
        traffic = runs[0].traffic.assign(bytes=runs[0].traffic["bytes"] / count)
        sums = traffic["purpose"] == "weights"
        counted = (float(traffic.loc[kind, "bytes"].sum()) for kind in (sums, ~sums))
        return Ran(timed, Sent(*counted))

    def seconds(self, system: str) -> float:
        """Return a system's seconds a minibatch, emulated if it was, else simulated."""
        if system in self.runs:
            return self.runs[system].timed.seconds
        return _simulated_s(self, system)

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

    def _planned(self, replicate: bool = True) -> Plan:
        links = self.planned_for or self.cluster
        return plan(self.profile, links, cost=self.cost, replicate=replicate)


@cache
def _simulated_s(row: Row, system: str) -> float:
    ran = row.profile, row.plan_of(system)
    profile, plan = plans.summed_late(*ran) if row.late else ran
    count = row.setting.workers if system == BSP else plans.SIMULATED
    return plans.simulated_seconds(profile, plan, row.cluster, row.method_of(system), count)


F = TypeVar("F", bound=Callable[..., Any])

FIGURE13 = FOUR, EIGHT  # the rows of Figure 13, which has all systems


def emulated(
    rows: Mapping[str, Row], minibatches: int, faster: float, repeats: int
) -> dict[str, Row]:
    """Return rows with the systems emulated that Table 1 or Figure 13 has."""
    known, found = dict[tuple[object, ...], Ran](), {}
    for name, row in progress_bar(rows.items(), desc="emulating", unit="row"):
        runs = {}
        for system in SYSTEMS if row.setting in FIGURE13 else (BSP, PIPEDREAM):
            plan, alone = row.plan_of(system), system == MODEL_PARALLEL
            key = row.setting.model, row.setting.cluster, plan.config, (*plan.balance,), alone
            if key not in known:
                count = minibatches // 2 if alone or system == BSP else minibatches
                known[key] = row.ran(system, count, faster, repeats)
            runs[system] = known[key]
        found[name] = replace(row, given=row.plan, runs=runs)
    return found


def claim(
    nb: study.Notebook,
    repeats: int,
    id: str,
    *rows: Row,
    note: str = "",
    label: str = "",
    of: Container[str] = (BSP, PIPEDREAM),
    circular: Container[names.Change] = (),
    figure: str | None = None,
) -> Callable[[F], F]:
    """Record what the function below finds of some rows, as :meth:`.Notebook.claim` does.

    It is called with the ``rows`` of each of the ``repeats`` rounds of emulations, as simulated,
    and with each change that any of them can have and that is not ``circular``: puts in what the
    claim says. ``label`` is of a value with no clock in it: all others rest on emulations ``of``
    systems, and are simulated if any of these does not count.
    """
    runs = [ran.timed for row in rows for name, ran in row.runs.items() if name in of and not label]
    kind = label or ("emulated" if all(run.counted for run in runs) else "simulated")
    notes = dict.fromkeys([note, *(run.note for run in runs)])
    emulations = tuple([row.in_round(n) for row in rows] for n in range(repeats))
    rounds = study.Rounds[list[Row]](emulations, [row.in_round(None) for row in rows])
    because = [
        study.changed(*change, [row.changed(change) for row in rows])
        for change in dict.fromkeys(change for row in rows for change in row.otherwise)
        if change not in circular
    ]
    how: Any = {"over": [list(rows)] if label else rounds, "because": because, "figure": figure}

    def record(function: F) -> F:
        decorate = nb.claim(f"pipedream-{id}", kind, "; ".join(filter(None, notes)), **how)
        decorate(wraps(function)(lambda rows: function(*rows)))
        return function

    return record
