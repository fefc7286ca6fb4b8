"""What Table 1's predictions and runs say of the paper's claims (sections 1, 5.2 and 5.3)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.cause_names import OWN_BANDWIDTH, PLAN
from pipekit.papers.pipedream.table1 import traffic
from pipekit.papers.pipedream.table1.causes import Slowness
from pipekit.papers.pipedream.table1.changes import INSTEAD, UNCHANGED, Change
from pipekit.papers.pipedream.table1.figure13 import Figure13
from pipekit.papers.pipedream.table1.rows import (
    FITTED,
    TABLE1,
    THROUGHPUT,
    Setting,
    printed,
    replicas_of,
    rows_consistent,
)
from pipekit.papers.pipedream.table1.runs import Runs, weakest
from pipekit.papers.pipedream.table1.speeds import overhead, overhead_removed
from pipekit.papers.pipedream.table1.traffic import gradient_difference
from pipekit.plans import Plan
from pipekit.schedules import optimal_in_flight

FOUR, EIGHT, SIXTEEN, EIGHT_B, INCEPTION, INCEPTION_B, S2VT = TABLE1
RESNET, ALEXNET = THROUGHPUT
HEADLINES = INCEPTION_B, EIGHT_B, RESNET, ALEXNET, S2VT
"""The rows behind section 1's speedups."""


def _is_hybrid(replicas: Sequence[int]) -> bool:
    """Return whether a plan has several stages, and a stage on several workers."""
    return len(replicas) > 1 and max(replicas) > 1


def _hybrids(plans: Mapping[Setting, Plan]) -> int:
    """Return how many rows have a hybrid plan where the paper has one, and none where not."""
    return sum(
        _is_hybrid(plan.replicas) == _is_hybrid(replicas_of(printed(row, "config")))
        for row, plan in plans.items()
    )


PLANNERS, PAPERS = "planner's", "paper's"
"""Whose configuration a row of the causes has."""

Valued = Callable[[list[Change]], Any]
"""What a claim's value is, from the changed rows that it speaks of."""


def _bsp(rows: list[Change]) -> float:
    return rows[0].bsp_speedup


def _faster(rows: list[Change]) -> float:
    return rows[0].speedup


def _over_bsp(rows: list[Change]) -> float:
    return rows[0].over_bsp


def _scaling_of(rows: list[Change]) -> list[float]:
    eight, sixteen = rows
    return [eight.bsp_speedup, sixteen.bsp_speedup, sixteen.speedup]


def _saved(rows: list[Change]) -> float:
    return rows[0].saved


def _saved_exactly(rows: list[Change]) -> list[float]:
    return [rows[0].saved, 0.0]


_BSP_FITTED, _PLAN_GIVEN = (OWN_BANDWIDTH,), (PLAN,)
"""Changes that say nothing of BSP's speedup, which is fitted, and of what the planner chooses."""

_CIRCULAR = "follows from the BSP speedup that the bandwidth was fitted on"
"""Why a value is not judged."""


def _finding(
    claim: str, value: Any, note: str = "", figure: str | None = None, label: str = "emulated"
) -> Finding:
    return Finding(f"pipedream-{claim}", value, label, note, figure)


def formula_speedups() -> list[float]:
    """Return VGG16's BSP speedups on 8 and 16 machines if traffic were all, fitted on 4 (exact)."""
    fitted_on = 4, float(printed(FOUR, "bsp-speedup"))
    return [traffic.formula_speedup(workers, fitted_on) for workers in (8, 16)]


def special_cases() -> tuple[float, list[int]]:
    """Return how far BSP's gradient is from one big batch's, and the NOAM of Table 1's plans."""
    configs = ["2-1-1", "7-1", "9-5-1-1", "8", "1-1-1-1"]
    noam = [optimal_in_flight(replicas_of(config))[0] for config in configs]
    return gradient_difference(workers=4), noam


@dataclass(frozen=True)
class Judge:
    """All results of Table 1 and of :mod:`.causes`, and the findings that follow."""

    runs: Mapping[Setting, Runs]
    causes: pd.DataFrame
    slower: float
    slownesses: Sequence[Slowness]
    changes: Mapping[Setting, Sequence[Change]]

    def _turned(
        self,
        found: Finding,
        rows: Sequence[Setting],
        value: Valued,
        circular: Sequence[str] = (),
    ) -> Finding:
        """Return a finding with its value under each change that all of some rows know.

        A change that is ``circular``, since it puts in what the claim says, is none; nor is one
        that leaves the simulated value as it is.
        """
        known = [{each.cause: each for each in self.changes[row]} for row in rows]
        unchanged = value([each[UNCHANGED] for each in known])
        for cause in known[0]:
            if cause in circular or not all(cause in each for each in known):
                continue
            changed = value([each[cause] for each in known])
            if changed != unchanged:
                found = found.because(cause, changed, changed=INSTEAD.get(cause, ""))
        return found

    @cached_property
    def borrowed(self) -> str:
        """What is known where a bandwidth fitted on other networks serves."""
        others = ", ".join(f"x {each.factor:.2f} beside {each.model}" for each in self.slownesses)
        return (
            f"one bandwidth serves all networks of a cluster, and one efficiency all networks "
            f"(compute x {self.slower:.2f} would meet Inception 8A's BSP; {others} by "
            f"cnn-benchmarks)"
        )

    @cached_property
    def s2vt_note(self) -> str:
        """Why S2VT misses."""
        found = self.runs[S2VT]
        return (
            f"our S2VT (the paper prints no layer sizes) sends "
            f"{found.pipedream.closed.activations / 1e6:.0f} MB of activations a minibatch, all "
            f"that Table 1's 95 % leaves is {0.05 * found.bsp.closed.total / 1e6:.0f} MB: "
            "transfers set the pace"
        )

    def cause(self, row: Setting) -> str:
        """Return what is known of a row's pipeline, for a note."""
        by = self.causes.set_index(["row", "configuration"])
        mine, theirs = (
            f"{one['replicas']}: planned {one['planned']:.2f}, simulated {one['simulated']:.2f}, "
            f"with 2 x NOAM{{}} {one['2 x NOAM']:.2f}"
            for one in (by.loc[(row.name, whose)] for whose in (PLANNERS, PAPERS))
        )
        text = f"plan {mine.format(' in flight')}; the paper's {theirs.format('')}"
        extra = {S2VT: self.s2vt_note, INCEPTION: self.borrowed}.get(row, "")
        links = f"the busiest link would allow {by.loc[(row.name, PLANNERS)]['links']:.1f}"
        return "; ".join(filter(None, [text, links, extra]))

    def row(self, row: Setting) -> list[Finding]:
        """Return the findings of a row: BSP's speedup, plan, PipeDream's speedup and bytes."""
        found, name, points = self.runs[row], f"table1-{row.name}", "speedups_points.svg"
        one = found.prediction
        bsp_note = "calibration cell: the bandwidth was fitted on it"
        if row not in FITTED:
            saturates = "traffic saturates in our ring, the paper's stalls grow on: see formula"
            bsp_note = saturates if row.model == "vgg16" else self.borrowed
        plan_note = (
            f"ours {one.plan.config}; by the planner's formula {one.config_ratios[0]:.3f}, "
            f"simulated {one.config_ratios[1]:.3f}; at the nominal bandwidth "
            f"{one.nominal_plan.config}, ratio {one.nominal_config_ratio:.3f}"
        )
        bytes_note = (
            f"all bytes counted alike; {found.saved_activations_once:.1f} % with activations at "
            f"one end only; {found.saved_by_paper_plan:.1f} % with the paper's "
            f"{printed(row, 'config')} and our best cut for it"
        ) + (f"; {self.s2vt_note}" if row == S2VT else "")
        scaling = [self.runs[EIGHT].bsp_speedup, found.bsp_speedup, found.speedup]
        bsp = scaling if row == SIXTEEN else found.bsp_speedup
        bsp_label = self._weakest(EIGHT, SIXTEEN) if row == SIXTEEN else weakest(found.bsp)
        sent = found.saved if row == INCEPTION else [found.saved, found.excess]
        ours, cause = weakest(found.pipedream), self.cause(row)
        bsp_note, pp_note, both_note = (
            "; ".join(filter(None, [text, *(each.timed.note for each in results)]))
            for text, *results in (
                (bsp_note, found.bsp),
                (cause, found.pipedream),
                (cause, found.bsp, found.pipedream),
            )
        )
        rows = [EIGHT, SIXTEEN] if row == SIXTEEN else [row]
        bsp_of: Valued = _scaling_of if row == SIXTEEN else _bsp
        sent_of: Valued = _saved if row == INCEPTION else _saved_exactly
        bsp_found = self._turned(
            _finding(f"{name}-bsp-speedup", bsp, bsp_note, points, bsp_label),
            rows,
            bsp_of,
            circular=_BSP_FITTED,
        )
        bytes_found = _finding(f"{name}-comm-reduction", sent, bytes_note, "communication_bars.svg")
        return [
            bsp_found.only_shown(_CIRCULAR) if row in FITTED else bsp_found,
            self._turned(
                _finding(f"{name}-config", one.config_ratio, plan_note, label="simulated"),
                [row],
                lambda changed: changed[0].config_ratio,
                circular=_PLAN_GIVEN,
            ),
            self._turned(
                _finding(f"{name}-pp-speedup", found.speedup, pp_note, points, ours),
                [row],
                _faster,
            ),
            self._turned(
                _finding(f"{name}-pp-over-bsp", found.over_bsp, both_note, label=found.label),
                [row],
                _over_bsp,
            ),
            self._turned(bytes_found, [row], sent_of),
        ]

    def _weakest(self, *rows: Setting) -> str:
        """Return the weakest kind of the seconds of some rows."""
        both = ((self.runs[row].bsp, self.runs[row].pipedream) for row in rows)
        return weakest(*(one for pair in both for one in pair))

    def rows(self) -> list[Finding]:
        """Return the findings of all rows of Table 1."""
        return [finding for row in TABLE1 for finding in self.row(row)]

    def introduction(self, calibrations: pd.DataFrame) -> list[Finding]:
        """Return the findings of the abstract and section 1."""
        runs = self.runs
        excess = max(
            abs(one.excess) for found in runs.values() for one in (found.bsp, found.pipedream)
        )
        saved = [max(runs[row].saved for row in TABLE1), excess]
        shown = [runs[row].over_bsp for row in HEADLINES]
        slowest = calibrations.loc[calibrations["BSP, nominal"].idxmin()]
        nominal = (
            f"{slowest['row']} at the nominal bandwidth, nothing fitted; "
            f"{slowest['BSP, effective']:.2f} with the one fitted on VGG16's BSP"
        )
        both = f"ResNet-50, AlexNet: {self.borrowed}; S2VT: {self.s2vt_note}"
        twin = "the throughput twin: VGG16 8B"
        alike, bars = "all bytes counted alike", "communication_bars.svg"
        models = len({row.model for row in runs})
        return [
            _finding("abstract-comm-reduction-95", saved, alike, bars),
            _finding("abstract-tta-5x", runs[EIGHT_B].over_bsp, twin, label=runs[EIGHT_B].label),
            _finding("abstract-five-models-two-clusters", models, label="exact"),
            self._turned(
                _finding("intro-headline-speedups", shown, both, label=self._weakest(*HEADLINES)),
                HEADLINES,
                lambda changed: [each.over_bsp for each in changed],
            ),
            _finding(
                "intro-dp-slower-than-single",
                float(slowest["BSP, nominal"]),
                nominal,
                label="simulated",
            ),
        ]

    def closed_forms(self) -> list[Finding]:
        """Return what sections 2.1, 3.2 and 4 say of traffic, NOAM and data parallelism."""
        bsp = [found.bsp for found in self.runs.values()]
        difference, noam = special_cases()
        volume_note = (
            f"mean over the workers of all BSP runs; where a layer cannot be divided evenly, a "
            f"worker's own differ by up to {max(each.uneven for each in bsp):.0f} a minibatch"
        )
        texts = [(printed(row, "config"), replicas_of(printed(row, "config"))) for row in TABLE1]
        notation = all(
            Plan.by_hand([1] * len(replicas), replicas=replicas).config == text
            for text, replicas in texts
        )
        special = [difference, optimal_in_flight([4])[0]]
        formula = "no overlap; Table 1 has 2.35 and 3.28"
        exact = {
            "eq-dp-volume": (max(abs(each.excess) for each in bsp), volume_note),
            "eq-dp-volume-vs-table1": (formula_speedups(), formula),
            "noam-table1-values": (noam, ""),
            "dp-special-case": (special, "real engine, 4 workers, float64"),
            "table1-ratio-consistency": (rows_consistent(), ""),
            "table1-config-notation": (notation, ""),
        }
        return [_finding(claim, *row, label="exact") for claim, row in exact.items()]

    def comparison(self, figure13: Figure13) -> list[Finding]:
        """Return the findings of section 5.2."""
        runs = self.runs
        plans = {row: runs[row].prediction.plan for row in runs}
        faster = {row: runs[row].over_bsp for row in runs}
        gains = [faster[EIGHT], faster[EIGHT_B]]
        holds = (
            all(faster[row] > 1 for row in (FOUR, EIGHT, EIGHT_B, INCEPTION_B))
            and all(
                runs[row].speedup > figure13.speedup("model parallel", row) for row in (FOUR, EIGHT)
            )
            and gains[1] > gains[0]
            and faster[INCEPTION_B] > faster[INCEPTION]
        )
        over = (
            f"over BSP: VGG16 {gains[0]:.2f} on A, {gains[1]:.2f} on B; Inception-v3 "
            f"{faster[INCEPTION]:.2f} on A, {faster[INCEPTION_B]:.2f} on B: "
            f"{self.cause(INCEPTION_B)}"
        )
        hybrid = _hybrids({row: plans[row] for row in TABLE1})
        configs = ", ".join(f"{row.name} {plans[row].config}" for row in TABLE1)
        nominal = f"{runs[INCEPTION].prediction.nominal_plan.config} with the nominal bandwidth"
        picked, why = plans[INCEPTION].config, f"{nominal}; {self.borrowed}"
        a_and_b = self._weakest(EIGHT, EIGHT_B)
        worse = [
            runs[EIGHT_B].bsp_speedup / runs[EIGHT].bsp_speedup,
            runs[EIGHT_B].speedup / runs[EIGHT].speedup,
        ]
        return [
            _finding(
                "sec5-findings",
                holds,
                over,
                label=self._weakest(FOUR, EIGHT, EIGHT_B, INCEPTION, INCEPTION_B),
            ),
            self._turned(
                _finding("sec52-hybrid-all-but-one", hybrid, configs, label="simulated"),
                TABLE1,
                lambda changed: _hybrids({each.one.setting: each.plan for each in changed}),
                circular=_PLAN_GIVEN,
            ),
            self._turned(
                _finding("sec52-planner-picks-dp", picked, why, label="simulated"),
                [INCEPTION],
                lambda changed: changed[0].plan.config,
                circular=_PLAN_GIVEN,
            ),
            self._turned(
                _finding(
                    "fig10b-inception-8A",
                    picked == printed(INCEPTION, "config"),
                    f"ours is {picked}; {why}",
                    label="simulated",
                ),
                [INCEPTION],
                lambda changed: changed[0].plan.config == printed(INCEPTION, "config"),
                circular=_PLAN_GIVEN,
            ),
            *self._overheads(),
            _finding("sec52-gain-grows-a-to-b", gains, self.cause(EIGHT_B), label=a_and_b),
            _finding("sec52-both-scale-worse-on-b", worse, label=a_and_b),
            self._turned(
                _finding(
                    "sec52-inception-45pct",
                    faster[INCEPTION_B],
                    self.cause(INCEPTION_B),
                    label=runs[INCEPTION_B].label,
                ),
                [INCEPTION_B],
                _over_bsp,
            ),
            *(
                self._turned(
                    _finding(
                        f"sec52-{row.model}-8B",
                        faster[row],
                        f"plan {plans[row].config}; {self.borrowed}",
                        label=runs[row].label,
                    ),
                    [row],
                    _over_bsp,
                )
                for row in (RESNET, ALEXNET)
            ),
            *self._scaling(),
        ]

    def _overheads(self) -> Iterator[Finding]:
        for row in (EIGHT, INCEPTION, S2VT):
            share = overhead(self.runs[row].bsp_speedup, row.workers)
            note, label = self.borrowed if row is INCEPTION else "", weakest(self.runs[row].bsp)
            ours = self._turned(
                _finding(f"sec52-overhead-{row.name}", 100 * share, note, label=label),
                [row],
                lambda changed: 100 * overhead(_bsp(changed), changed[0].one.setting.workers),
                circular=_BSP_FITTED,
            )
            yield ours.only_shown(_CIRCULAR) if row in FITTED else ours
        for name, row in {"overhead-eliminated": EIGHT, "s2vt-overhead-reduced": S2VT}.items():
            found = self.runs[row]
            removed = overhead_removed(found.speedup, found.bsp_speedup, row.workers)
            value = [found.saved, 100 * removed]
            yield _finding(f"sec52-{name}", value, self.cause(row), label=found.label)

    def _scaling(self) -> Iterator[Finding]:
        rows = [self.runs[row] for row in (FOUR, EIGHT, SIXTEEN)]
        bsp, ours = [found.bsp_speedup for found in rows], [found.speedup for found in rows]
        near = f"BSP on 16 is {bsp[-1]:.2f} here and 3.28 in the paper: traffic saturates"
        label = self._weakest(FOUR, EIGHT, SIXTEEN)
        vgg16 = FOUR, EIGHT, SIXTEEN
        yield self._turned(
            _finding("sec52-bsp-scaling", bsp, near, label=label),
            vgg16,
            lambda changed: [each.bsp_speedup for each in changed],
            circular=_BSP_FITTED,
        )
        yield self._turned(
            _finding("sec52-pp-scaling", ours, self.cause(SIXTEEN), label=label),
            vgg16,
            lambda changed: [each.speedup for each in changed],
        )
        yield self._turned(
            _finding("sec52-pp4-near-bsp16", ours[0] / bsp[-1], near, label=label),
            vgg16,
            lambda changed: changed[0].speedup / changed[-1].bsp_speedup,
            circular=_BSP_FITTED,
        )
