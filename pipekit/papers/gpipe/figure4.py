"""GPipe's Figure 4: emulated steps of ResNet-101 taken apart, and what section 4.2 says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

import pipekit as pk
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.figure3 import Panel
from pipekit.papers.gpipe.scenarios import Scenario
from pipekit.papers.gpipe.speed import RESNET, Bar, bars, profile_of
from pipekit.papers.gpipe.step_time import (
    bubble_over_theory,
    compute_bound,
    late_recomputation,
    read_off,
    recomputes_early,
)
from pipekit.traces import Trace

OVERHEADS = ["update", "imbalance", "bubble", "communication", "other"]
"""Besides recomputation."""


@dataclass(frozen=True)
class Steps:
    """ResNet-101's steps on 2, 4 and 8 accelerators, emulated.

    Attributes:
        bars: by K.
        traces: of a step each, by K.
    """

    bars: Mapping[int, Bar]
    traces: Mapping[int, Trace]

    def told(self, k: int) -> pd.Series:
        """Return where the time goes (%), read off as Figure 4's caption says."""
        return read_off(self.traces[k])

    def causes(self, k: int) -> pd.Series:
        """Return where the time goes (%), idle time by its cause (:meth:`Trace.breakdown`)."""
        return self.traces[k].breakdown().loc["all"]


def steps(panel: Panel) -> Steps:
    """Return the steps on several accelerators of a panel of Figure 3."""
    pipelined = [
        (bar.scenario.stages, bar, trace)
        for bar, trace in zip(panel.bars, panel.traces, strict=True)
        if bar.scenario.stages > 1
    ]
    return Steps({k: bar for k, bar, _ in pipelined}, {k: trace for k, _, trace in pipelined})


def parts(found: Steps, on_cores: Trace) -> pd.DataFrame:
    """Return the rows of Figure 4: a run each, in percent of its time.

    Args:
        found: the emulated steps.
        on_cores: a step measured on 2 cores.
    """
    rows = {f"K = {k}, read off": found.told(k) for k in (2, 4)}
    rows |= {f"K = {k}, by cause": found.causes(k) for k in (2, 4)}
    rows |= {"2 cores, measured": on_cores.breakdown().loc["all"]}
    return pd.DataFrame(rows).T


def findings(found: Steps, picture: str) -> list[Finding]:
    """Return what Figure 4 and section 4.2 claim of a step's parts.

    Args:
        found: the emulated steps.
    """
    fused, by_time = _imbalances(compute_bound(profile_of(RESNET))), _imbalances(by="time")
    k2, k4 = found.told(2), found.told(4)
    causes = {k: found.causes(k) for k in (2, 4)}
    why = (
        f"read off as the caption says. By cause it is {causes[2]['imbalance']:.1f} (K = 2) and "
        f"{causes[4]['imbalance']:.1f} (K = 4): cut by operations, which do not tell the time of "
        f"layers whose memory traffic counts; with all fused {fused[2]:.1f} and {fused[4]:.1f}, "
        f"cut by time {by_time[2]:.1f} and {by_time[4]:.1f} (simulated)"
    )
    imbalance = [float(k2["imbalance"]), float(k4["imbalance"])]
    ratio = min(float(k["recompute"] / k[OVERHEADS].max()) for k in (k2, k4))
    simulated = [float(read_off(bar.simulated())["imbalance"]) for bar in found.bars.values()]
    return [
        Finding.emulated("gpipe-fig4a-breakdown-k2", [float(k2.sum()), imbalance[0]], why, picture),
        Finding.emulated("gpipe-fig4b-breakdown-k4", [float(k4.sum()), imbalance[1]], why, picture),
        Finding.emulated("gpipe-sec42-imbalance-k2", imbalance[0], why),
        Finding.emulated("gpipe-sec42-imbalance-k4", imbalance, why),
        Finding.emulated("gpipe-sec42-recompute-23", float(max(k2["recompute"], k4["recompute"]))),
        Finding.emulated(
            "gpipe-sec42-recompute-main-overhead",
            ratio,
            f"K = 4: {k4['recompute']:.1f} % against {k4['bubble']:.1f} % of bubble read off, "
            f"{causes[4]['bubble']:.1f} % by cause; in theory (K-1)/(T+K-1), {100 * 3 / 19:.1f} %",
        ),
        Finding.simulated(
            "gpipe-sec42-imbalance-grows",
            simulated,
            f"by cause, cut by time: {by_time[2]:.1f}, {by_time[4]:.1f}, {by_time[8]:.1f}; all "
            f"fused: {fused[2]:.1f}, {fused[4]:.1f}, {fused[8]:.1f}",
        ),
    ]


def bubbles(found: Steps) -> pd.DataFrame:
    """Return each K's bubble over theory, recomputed early and late (simulated) and emulated."""
    late_profile, rows = late_recomputation(profile_of(RESNET)), []
    for k, bar in found.bars.items():
        plan = pk.Plan.by_hand(bar.plan.balance, rows=bar.profile.rows)
        late = pk.simulate(bar.scenario.schedule(), late_profile, plan)
        traces = {"early": bar.simulated(), "late": late, "early, emulated": found.traces[k]}
        rows.append(
            {"K": k}
            | {
                what: bubble_over_theory(trace, k, bar.scenario.microbatches)
                for what, trace in traces.items()
            }
            | {"recomputes before its gradient": recomputes_early(found.traces[k])}
        )
    return pd.DataFrame(rows)


def bubble_findings(table: pd.DataFrame) -> list[Finding]:
    """Return what sections 3.3 and 4.2 claim of recomputing early.

    Args:
        table: what :func:`bubbles` returned.
    """
    furthest = table.loc[(table["late"] - 1).abs().idxmax(), "late"]
    early = (table["early"] < 1).all() and table["recomputes before its gradient"].all()
    return [
        Finding.simulated(
            "gpipe-sec42-bubble-below-theory",
            [float(table["early"].max()), float(furthest)],
            "of the balanced run: what imbalance costs is left out; K = 2, 4 and 8",
        ),
        Finding.simulated(
            "gpipe-recompute-early",
            bool(early),
            "and in the engine's emulated traces every stage but the last recomputes its first "
            "microbatch before the gradient for it is computed",
        ),
    ]


def measured_table(scenarios: Sequence[Scenario], traces: Sequence[Trace]) -> pd.DataFrame:
    """Return a row a scenario trained on this machine's cores; the first is the baseline."""
    baseline = traces[0].makespan_s
    return pd.DataFrame(
        {
            "scenario": scenario.name,
            "microbatches": scenario.microbatches,
            "seconds a minibatch": trace.makespan_s,
            "over naive-1": baseline / trace.makespan_s,
            "update (%)": trace.breakdown().loc["all", "update"],
            "recompute (%)": trace.breakdown().loc["all", "recompute"],
        }
        for scenario, trace in zip(scenarios, traces, strict=True)
    )


def measured_findings(table: pd.DataFrame, how: str, emulated_update: float) -> list[Finding]:
    """Return what section 4.2 claims of one partition, and of the update's time.

    Args:
        table: of naive-1, pipeline-1 on whole minibatches, pipeline-1 and pipeline-2 on 4
            microbatches, see :func:`measured_table`.
        how: it was measured, in words.
        emulated_update: percent of a step's time, K = 2.
    """
    throughput = float(table["over naive-1"][1])
    note = (
        f"{how}; in 4 microbatches {table['over naive-1'][2]:.3f}; recomputation is "
        f"{table['recompute (%)'][1]:.1f} % of the step"
    )
    return [
        Finding.measured("gpipe-sec42-pipeline1-throughput", throughput, note),
        Finding.measured("gpipe-sec42-recompute-overhead-25", 100 * (1 / throughput - 1), note),
        Finding.measured(
            "gpipe-sec42-weight-update-small",
            float(table["update (%)"][1:].max()),
            "SGD with momentum, K = 1 and 2, the largest; larger minibatches make it smaller. "
            f"Emulated, for TPU-v2 and 128 images: {emulated_update:.2f} (K = 2)",
        ),
    ]


def _imbalances(costs: pk.Profile | None = None, by: str = "operations") -> dict[int, float]:
    """Return the imbalance by cause (%), simulated, by K; arguments as for ``speed.bars``."""
    _, *pipelined = bars(RESNET, costs, by)
    return {
        bar.scenario.stages: float(bar.simulated().breakdown()["imbalance"]["all"])
        for bar in pipelined
    }
