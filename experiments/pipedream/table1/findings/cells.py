"""The findings of Table 1's cells: a row's plan, its two speedups, their ratio, and its bytes."""

from experiments.pipedream.table1 import calibration
from experiments.pipedream.table1.changes import Change
from experiments.pipedream.table1.findings.judge import (
    BSP_FITTED,
    BSP_GIVEN,
    EIGHT,
    INCEPTION,
    PLAN_GIVEN,
    S2VT,
    SIXTEEN,
    Judge,
    Valued,
    bsp,
    finding,
    over_bsp,
)
from experiments.pipedream.table1.rows import FITTED, TABLE1, Setting, printed
from experiments.pipedream.table1.runs import weakest
from experiments.recorded.findings import Finding

POINTS, BARS = "speedups_points.svg", "communication_bars.svg"


def findings(judge: Judge) -> list[Finding]:
    """Return the findings of all rows of Table 1."""
    return [found for row in TABLE1 for found in row_findings(judge, row)]


def row_findings(judge: Judge, row: Setting) -> list[Finding]:
    """Return the findings of a row: BSP's speedup, plan, PipeDream's speedups and bytes."""
    return [
        held_out(judge, row) if row in FITTED else _bsp_speedup(judge, row),
        _plan(judge, row),
        *_speedups(judge, row),
        _bytes(judge, row),
    ]


def held_out(judge: Judge, row: Setting) -> Finding:
    """Return the BSP speedup of a cell of the fit, predicted without it.

    With the bandwidth that was fitted on it the cell would be no prediction; with the one fitted on
    the cluster's other cell alone it is (simulated).
    """
    one = judge.runs[row].prediction
    cluster = calibration.without(row)
    joint = calibration.bsp_speedup(one.profile, one.cluster)
    note = (
        f"held out: the bandwidth is fitted on the cluster's other calibration cell alone, "
        f"{cluster.levels[0].used_bandwidth * 8e-9:.1f} Gbps; {joint:.2f} with the one fitted on "
        "both"
    )
    value = calibration.bsp_speedup(one.profile, cluster)
    found = finding(f"table1-{row.name}-bsp-speedup", value, note, POINTS, "simulated")
    return judge.turned(found, [row], bsp, circular=BSP_FITTED)


def _bsp_speedup(judge: Judge, row: Setting) -> Finding:
    """Return a BSP speedup that was not fitted; of 16 machines the scaling that the ledger asks."""
    found = judge.runs[row]
    saturates = "traffic saturates in our ring, the paper's stalls grow on: see formula"
    note = saturates if row.model == "vgg16" else judge.borrowed
    note = "; ".join(filter(None, [note, found.bsp.timed.note]))
    claim = f"table1-{row.name}-bsp-speedup"
    if row != SIXTEEN:
        made = finding(claim, found.bsp_speedup, note, POINTS, weakest(found.bsp))
        return judge.turned(made, [row], bsp, circular=BSP_GIVEN)
    scaling = [judge.runs[EIGHT].bsp_speedup, found.bsp_speedup, found.speedup]
    made = finding(claim, scaling, note, POINTS, judge.weakest(EIGHT, SIXTEEN))
    return judge.turned(made, [EIGHT, SIXTEEN], _scaling_of, circular=BSP_GIVEN)


def _plan(judge: Judge, row: Setting) -> Finding:
    one = judge.runs[row].prediction
    note = (
        f"ours {one.plan.config}; by the planner's formula {one.config_ratios[0]:.3f}, "
        f"simulated {one.config_ratios[1]:.3f}; at the nominal bandwidth "
        f"{one.nominal_plan.config}, ratio {one.nominal_config_ratio:.3f}"
    )
    made = finding(f"table1-{row.name}-config", one.config_ratio, note, label="simulated")
    return judge.turned(made, [row], lambda rows: rows[0].config_ratio, circular=PLAN_GIVEN)


def _speedups(judge: Judge, row: Setting) -> list[Finding]:
    found, cause, name = judge.runs[row], judge.cause(row), f"table1-{row.name}"
    own, both = (
        "; ".join(filter(None, [cause, *(each.timed.note for each in results)]))
        for results in ([found.pipedream], [found.bsp, found.pipedream])
    )
    label = weakest(found.pipedream)
    speedup = finding(f"{name}-pp-speedup", found.speedup, own, POINTS, label)
    ratio = finding(f"{name}-pp-over-bsp", found.over_bsp, both, label=found.label)
    return [
        judge.turned(speedup, [row], lambda rows: rows[0].speedup),
        judge.turned(ratio, [row], over_bsp),
    ]


def _bytes(judge: Judge, row: Setting) -> Finding:
    found = judge.runs[row]
    note = (
        f"all bytes counted alike; {found.saved_activations_once:.1f} % with activations at "
        f"one end only; {found.saved_by_paper_plan:.1f} % with the paper's "
        f"{printed(row, 'config')} and our best cut for it"
    ) + (f"; {judge.s2vt_note}" if row == S2VT else "")
    sent = found.saved if row == INCEPTION else [found.saved, found.excess]
    sent_of: Valued = _saved if row == INCEPTION else _saved_exactly
    made = finding(f"table1-{row.name}-comm-reduction", sent, note, BARS)
    return judge.turned(made, [row], sent_of)


def _scaling_of(rows: list[Change]) -> list[float]:
    eight, sixteen = rows
    return [eight.bsp_speedup, sixteen.bsp_speedup, sixteen.speedup]


def _saved(rows: list[Change]) -> float:
    return rows[0].saved


def _saved_exactly(rows: list[Change]) -> list[float]:
    return [rows[0].saved, 0.0]
