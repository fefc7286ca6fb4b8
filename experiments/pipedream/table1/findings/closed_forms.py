"""Findings that need no clock: traffic, NOAM, notation, data parallelism (sections 2.1, 3.2, 4)."""

from collections.abc import Iterable

from experiments.pipedream.table1 import traffic
from experiments.pipedream.table1.findings.judge import EIGHT, FOUR, SIXTEEN, finding
from experiments.pipedream.table1.rows import TABLE1, printed, replicas_of, rows_consistent
from experiments.pipedream.table1.speeds import Result
from experiments.pipedream.table1.traffic import gradient_difference
from experiments.recorded.findings import Finding
from pipekit.plans import Plan
from pipekit.schedules import optimal_in_flight


def formula_speedups() -> list[float]:
    """Return VGG16's BSP speedups on 8 and 16 machines if traffic were all, fitted on 4 (exact)."""
    fitted_on = 4, float(printed(FOUR, "bsp-speedup"))
    return [traffic.formula_speedup(workers, fitted_on) for workers in (8, 16)]


def both_scalings() -> str:
    """Return how BSP scales by the paper's formula and in its Table 1, in words."""
    speedups = formula_speedups()
    return (
        f"by the bytes of section 3.2, fitted on Table 1's 4 machines, {speedups[0]:.2f} and "
        f"{speedups[1]:.2f} on 8 and 16, and in Table 1 {printed(EIGHT, 'bsp-speedup')} and "
        f"{printed(SIXTEEN, 'bsp-speedup')}"
    )


def special_cases() -> tuple[float, list[int]]:
    """Return how far BSP's gradient is from one big batch's, and the NOAM of Table 1's plans."""
    configs = ["2-1-1", "7-1", "9-5-1-1", "8", "1-1-1-1"]
    noam = [optimal_in_flight(replicas_of(config))[0] for config in configs]
    return gradient_difference(workers=4), noam


def findings(bsp_runs: Iterable[Result]) -> list[Finding]:
    """Return the findings, of which those on traffic are by the engine's counters of some runs."""
    bsp = list(bsp_runs)
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
    exact = {
        "eq-dp-volume": (max(abs(each.excess) for each in bsp), volume_note),
        "eq-dp-volume-vs-table1": (
            formula_speedups(),
            "no overlap; stalls grow faster than the formula's bytes, which saturate",
        ),
        "noam-table1-values": (noam, ""),
        "dp-special-case": (special, "real engine, 4 workers, float64"),
        "table1-ratio-consistency": (rows_consistent(), ""),
        "table1-config-notation": (notation, ""),
    }
    found = {claim: finding(claim, *row, label="exact") for claim, row in exact.items()}
    found["eq-dp-volume-vs-table1"] = found["eq-dp-volume-vs-table1"].contradicted(both_scalings())
    return list(found.values())
