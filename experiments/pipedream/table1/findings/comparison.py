"""The findings of section 5.2: what its text says of Table 1's runs."""

from collections.abc import Iterator, Mapping, Sequence

from experiments.pipedream.table1.changes import Change
from experiments.pipedream.table1.figure13 import Figure13
from experiments.pipedream.table1.findings.cells import held_out
from experiments.pipedream.table1.findings.closed_forms import both_scalings
from experiments.pipedream.table1.findings.judge import (
    ALEXNET,
    BSP_FITTED,
    BSP_GIVEN,
    EIGHT,
    EIGHT_B,
    FOUR,
    INCEPTION,
    INCEPTION_B,
    PLAN_GIVEN,
    RESNET,
    S2VT,
    SIXTEEN,
    Judge,
    bsp,
    finding,
    over_bsp,
)
from experiments.pipedream.table1.rows import TABLE1, Setting, printed, replicas_of
from experiments.pipedream.table1.runs import weakest
from experiments.pipedream.table1.speeds import overhead, overhead_removed
from experiments.recorded.findings import Finding
from pipekit.plans import Plan


def findings(judge: Judge, figure13: Figure13) -> list[Finding]:
    """Return all of them; ``figure13`` has the speed of model parallelism."""
    return [
        _all_in_all(judge, figure13),
        *_plans(judge),
        *_overheads(judge),
        *_gains(judge),
        *_scaling(judge),
    ]


def _is_hybrid(replicas: Sequence[int]) -> bool:
    """Return whether a plan has several stages, and a stage on several workers."""
    return len(replicas) > 1 and max(replicas) > 1


def _hybrids(plans: Mapping[Setting, Plan]) -> int:
    """Return how many rows have a hybrid plan where the paper has one, and none where not."""
    return sum(
        _is_hybrid(plan.replicas) == _is_hybrid(replicas_of(printed(row, "config")))
        for row, plan in plans.items()
    )


def _all_in_all(judge: Judge, figure13: Figure13) -> Finding:
    runs = judge.runs
    faster = {row: runs[row].over_bsp for row in runs}
    holds = (
        all(faster[row] > 1 for row in (FOUR, EIGHT, EIGHT_B, INCEPTION_B))
        and all(
            runs[row].speedup > figure13.speedup("model parallel", row) for row in (FOUR, EIGHT)
        )
        and faster[EIGHT_B] > faster[EIGHT]
        and faster[INCEPTION_B] > faster[INCEPTION]
    )
    over = (
        f"over BSP: VGG16 {faster[EIGHT]:.2f} on A, {faster[EIGHT_B]:.2f} on B; Inception-v3 "
        f"{faster[INCEPTION]:.2f} on A, {faster[INCEPTION_B]:.2f} on B: "
        f"{judge.cause(INCEPTION_B)}"
    )
    label = judge.weakest(FOUR, EIGHT, EIGHT_B, INCEPTION, INCEPTION_B)
    return finding("sec5-findings", holds, over, label=label)


def _plans(judge: Judge) -> list[Finding]:
    plans = {row: judge.runs[row].prediction.plan for row in TABLE1}
    configs = ", ".join(f"{row.name} {plan.config}" for row, plan in plans.items())
    nominal = judge.runs[INCEPTION].prediction.nominal_plan.config
    picked, paper = plans[INCEPTION].config, printed(INCEPTION, "config")
    why = f"{nominal} with the nominal bandwidth; {judge.borrowed}"
    hybrid = finding("sec52-hybrid-all-but-one", _hybrids(plans), configs, label="simulated")
    inception = finding("sec52-planner-picks-dp", picked, why, label="simulated")
    same = finding(
        "fig10b-inception-8A", picked == paper, f"ours is {picked}; {why}", label="simulated"
    )
    return [
        judge.turned(
            hybrid,
            TABLE1,
            lambda rows: _hybrids({each.one.setting: each.plan for each in rows}),
            circular=PLAN_GIVEN,
        ),
        judge.turned(inception, [INCEPTION], _config, circular=PLAN_GIVEN),
        judge.turned(same, [INCEPTION], lambda rows: _config(rows) == paper, circular=PLAN_GIVEN),
    ]


def _overheads(judge: Judge) -> Iterator[Finding]:
    for row in (EIGHT, INCEPTION):
        share = overhead(judge.runs[row].bsp_speedup, row.workers)
        note, label = judge.borrowed if row is INCEPTION else "", weakest(judge.runs[row].bsp)
        made = finding(f"sec52-overhead-{row.name}", 100 * share, note, label=label)
        yield judge.turned(made, [row], _overhead, circular=BSP_GIVEN)
    alone = held_out(judge, S2VT)
    share = 100 * overhead(alone.value, S2VT.workers)
    made = finding(f"sec52-overhead-{S2VT.name}", share, alone.note, label=alone.label)
    yield judge.turned(made, [S2VT], _overhead, circular=BSP_FITTED)
    both = {"sec52-overhead-eliminated": EIGHT, "sec52-s2vt-overhead-reduced": S2VT}
    for name, row in both.items():
        found = judge.runs[row]
        removed = overhead_removed(found.speedup, found.bsp_speedup, row.workers)
        value = [found.saved, 100 * removed]
        made = finding(name, value, judge.cause(row), label=found.label)
        yield judge.turned(made, [row], _removed)


def _gains(judge: Judge) -> Iterator[Finding]:
    runs = judge.runs
    gains = [runs[row].over_bsp for row in (EIGHT, EIGHT_B)]
    worse = [
        runs[EIGHT_B].bsp_speedup / runs[EIGHT].bsp_speedup,
        runs[EIGHT_B].speedup / runs[EIGHT].speedup,
    ]
    label, note = judge.weakest(EIGHT, EIGHT_B), judge.cause(EIGHT_B)
    grows = finding("sec52-gain-grows-a-to-b", gains, note, label=label)
    scale = finding("sec52-both-scale-worse-on-b", worse, label=label)
    yield judge.turned(grows, [EIGHT, EIGHT_B], lambda rows: [each.over_bsp for each in rows])
    yield judge.turned(scale, [EIGHT, EIGHT_B], _b_over_a)
    others = {
        INCEPTION_B: ("sec52-inception-45pct", judge.cause(INCEPTION_B)),
        **{
            row: (
                f"sec52-{row.model}-8B",
                f"plan {runs[row].prediction.plan.config}; {judge.borrowed}",
            )
            for row in (RESNET, ALEXNET)
        },
    }
    for row, (claim, why) in others.items():
        made = finding(claim, runs[row].over_bsp, why, label=runs[row].label)
        yield judge.turned(made, [row], over_bsp)


def _scaling(judge: Judge) -> Iterator[Finding]:
    vgg16 = FOUR, EIGHT, SIXTEEN
    rows = [judge.runs[row] for row in vgg16]
    bsps, ours = [found.bsp_speedup for found in rows], [found.speedup for found in rows]
    near = f"BSP on 16 is {bsps[-1]:.2f} here and 3.28 in the paper: traffic saturates"
    label = judge.weakest(*vgg16)
    yield judge.turned(
        finding("sec52-bsp-scaling", bsps, near, label=label).contradicted(both_scalings()),
        vgg16,
        lambda changed: [each.bsp_speedup for each in changed],
        circular=BSP_GIVEN,
    )
    yield judge.turned(
        finding("sec52-pp-scaling", ours, judge.cause(SIXTEEN), label=label),
        vgg16,
        lambda changed: [each.speedup for each in changed],
    )
    yield judge.turned(
        finding("sec52-pp4-near-bsp16", ours[0] / bsps[-1], near, label=label),
        vgg16,
        lambda changed: changed[0].speedup / changed[-1].bsp_speedup,
        circular=BSP_GIVEN,
    )


def _config(rows: list[Change]) -> str:
    return rows[0].plan.config


def _overhead(rows: list[Change]) -> float:
    return 100 * overhead(bsp(rows), rows[0].one.setting.workers)


def _removed(rows: list[Change]) -> list[float]:
    (row,) = rows
    return [
        row.saved,
        100 * overhead_removed(row.speedup, row.bsp_speedup, row.one.setting.workers),
    ]


def _b_over_a(rows: list[Change]) -> list[float]:
    on_a, on_b = rows
    return [on_b.bsp_speedup / on_a.bsp_speedup, on_b.speedup / on_a.speedup]
