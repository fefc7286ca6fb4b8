"""GPipe's Figure 4: emulated steps of ResNet-101 taken apart, and what section 4.2 says of them."""

from collections.abc import Iterable

import pandas as pd

import pipekit as pk
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.speed.bars import RESNET, Bar, bars, profile_of
from pipekit.papers.gpipe.speed.figure3 import BY_OPERATIONS, CUT_BY_TIME, Panel
from pipekit.papers.gpipe.speed.step_time import (
    bubble_over_theory,
    compute_bound,
    late_recomputation,
    read_off,
    recomputes_early,
)
from pipekit.papers.repeats import KNOWN_ERROR
from pipekit.traces import Trace
from pipekit.traces.breakdown import ALL

OVERHEADS = ["update", "imbalance", "bubble", "communication", "other"]
"""Besides recomputation."""


def causes(step: Trace) -> pd.Series:
    """Return where the time of a step goes (%), idle time by its cause."""
    return step.breakdown().loc[ALL]


def parts(panel: Panel, on_cores: Trace) -> pd.DataFrame:
    """Return the rows of Figure 4: a run each, in percent of its time.

    They are emulated steps of a panel of Figure 3, and one measured on 2 cores.
    """
    steps = {k: step for k, (_, step) in panel.steps.items() if k in (2, 4)}
    rows = {f"K = {k}, read off": read_off(step) for k, step in steps.items()}
    rows |= {f"K = {k}, by cause": causes(step) for k, step in steps.items()}
    return pd.DataFrame(rows | {"2 cores, measured": causes(on_cores)}).T


def findings(panel: Panel, picture: str) -> list[Finding]:
    """Return what Figure 4 and section 4.2 claim of a step's parts, of ResNet-101's panel."""
    fused, by_time = _imbalances(compute_bound(profile_of(RESNET))), _imbalances(by="time")
    k2, k4 = (read_off(panel.steps[k][1]) for k in (2, 4))
    two, four = (causes(panel.steps[k][1]) for k in (2, 4))
    why = (
        f"read off as the caption says. By cause it is {two['imbalance']:.1f} (K = 2) and "
        f"{four['imbalance']:.1f} (K = 4): cut by operations, which do not tell the time of "
        f"layers whose memory traffic counts; with all fused {fused[2]:.1f} and {fused[4]:.1f}, "
        f"cut by time {by_time[2]:.1f} and {by_time[4]:.1f} (simulated)"
    )
    main = (
        f"K = 4: {k4['recompute']:.1f} % against {k4['bubble']:.1f} % of bubble read off, "
        f"{four['bubble']:.1f} % by cause; in theory (K-1)/(T+K-1), {100 * 3 / 19:.1f} %"
    )
    otherwise = (
        f"by cause, cut by time: {by_time[2]:.1f}, {by_time[4]:.1f}, {by_time[8]:.1f}; all "
        f"fused: {fused[2]:.1f}, {fused[4]:.1f}, {fused[8]:.1f}"
    )
    imbalance = [float(k2["imbalance"]), float(k4["imbalance"])]
    recompute = float(max(k2["recompute"], k4["recompute"]))
    even = [read_off(bar.simulated()) for bar in _cut(by="time") if bar.scenario.stages in (2, 4)]
    grows = [float(read_off(bar.simulated())["imbalance"]) for bar, _ in panel.steps.values()]
    fig4a, fig4b, label = "gpipe-fig4a-breakdown-k2", "gpipe-fig4b-breakdown-k4", panel.label
    errors = 0.0, KNOWN_ERROR  # all parts of a step are 100 % of it, at any speed
    return [
        Finding(fig4a, [float(k2.sum()), imbalance[0]], label, why, picture, known_error=errors),
        Finding(fig4b, [float(k4.sum()), imbalance[1]], label, why, picture, known_error=errors),
        Finding("gpipe-sec42-imbalance-k2", imbalance[0], label, why),
        Finding("gpipe-sec42-imbalance-k4", imbalance, label, why),
        Finding("gpipe-sec42-recompute-23", recompute, label),
        Finding(
            "gpipe-sec42-recompute-main-overhead", _recompute_over_next([k2, k4]), label, main
        ).because(BY_OPERATIONS, _recompute_over_next(even), changed=CUT_BY_TIME),
        Finding.simulated("gpipe-sec42-imbalance-grows", grows, otherwise),
    ]


def bubbles(panel: Panel) -> pd.DataFrame:
    """Return each K's bubble over theory, as Figure 4's caption has it read off.

    Recomputed early, simulated and emulated, and late; and both as if all stages were equal, which
    is what the theory is about.
    """
    late_profile, rows = late_recomputation(profile_of(RESNET)), []
    for k, (bar, step) in panel.steps.items():
        plan = pk.Plan.by_hand(bar.plan.balance, rows=bar.profile.rows)
        schedule = bar.scenario.schedule()
        one = pk.Plan.by_hand([1] * k, recompute="always")
        equal = pk.Profile.uniform(k, 1.0, 2.0)
        traces = {
            "early": bar.simulated(),
            "late": pk.simulate(schedule, late_profile, plan),
            "early, emulated": step,
            "early, equal stages": pk.simulate(schedule, equal, one),
            "late, equal stages": pk.simulate(
                schedule, late_recomputation(equal), pk.Plan.by_hand([1] * k)
            ),
        }
        t = bar.scenario.microbatches
        over = {what: bubble_over_theory(trace, k, t) for what, trace in traces.items()}
        rows.append({"K": k} | over | {"recomputes before its gradient": recomputes_early(step)})
    return pd.DataFrame(rows)


def bubble_findings(table: pd.DataFrame) -> list[Finding]:
    """Return what sections 3.3 and 4.2 claim of recomputing early; rows are :func:`bubbles`'s."""
    furthest = table.loc[(table["late"] - 1).abs().idxmax(), "late"]
    shrinks = (table["early"] < table["late"]).all() and (table["early, equal stages"] < 1).all()
    early = shrinks and table["recomputes before its gradient"].all()
    below = [float(table["early"].max()), float(furthest)]
    equal = [float(table[f"{when}, equal stages"].max()) for when in ("early", "late")]
    cause = (
        "read off as Figure 4's caption says, K = 2, 4 and 8, the farthest. Cause: the others wait "
        "for the slowest stage between their forwards and backwards, too, which is bubble by the "
        f"caption; with equal stages at most {table['early, equal stages'].max():.3f} early and "
        f"{table['late, equal stages'].max():.3f} late (simulated)"
    )
    before = (
        "with equal stages the bubble is below the theory, with ResNet-101's it is less than "
        "recomputed late; and in the engine's emulated traces every stage but the last recomputes "
        "its first microbatch before the gradient for it is computed"
    )
    return [
        Finding.simulated("gpipe-sec42-bubble-below-theory", below, cause).because(
            BY_OPERATIONS, equal, changed="stages of equal time"
        ),
        Finding.simulated("gpipe-recompute-early", bool(early), before),
    ]


def _recompute_over_next(steps: Iterable[pd.Series]) -> float:
    """Return the smallest ratio of recomputation to the largest other overhead of some steps."""
    return min(float(step["recompute"] / step[OVERHEADS].max()) for step in steps)


def _cut(costs: pk.Profile | None = None, by: str = "operations") -> list[Bar]:
    """Return ResNet-101's pipelines; arguments as for :func:`bars`."""
    _, *pipelined = bars(RESNET, costs, by)
    return pipelined


def _imbalances(costs: pk.Profile | None = None, by: str = "operations") -> dict[int, float]:
    """Return the imbalance by cause (%), simulated, by K; arguments as for :func:`bars`."""
    each = _cut(costs, by)
    return {bar.scenario.stages: float(causes(bar.simulated())["imbalance"]) for bar in each}
