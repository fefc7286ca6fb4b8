"""GPipe's bubble, (K-1)/(T+K-1): drawn, simulated and emulated (section 3.2)."""

from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd
import plotly.graph_objects as go

import pipekit as pk
from pipekit import plots, schedules
from pipekit.papers.findings import Finding
from pipekit.papers.timelines import EQUAL_SLOTS
from pipekit.schedules import Op
from pipekit.traces import Trace

Grid = Sequence[tuple[int, int]]

GRID: Grid = tuple(product([1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32]))
"""(K, T) that are looked at."""

PRINTED = (2, 4), (4, 4), (4, 16), (8, 16), (8, 32), (2, 16), (4, 32)
"""(K, T) whose bubble the ledger lists."""

TWO_SLOTS: Mapping[Op, float] = {**EQUAL_SLOTS, Op.BACKWARD: 2}
"""A backward takes two slots."""


def bubble(stages: int, microbatches: int) -> float:
    """Return GPipe's bubble fraction (K-1)/(T+K-1)."""
    return (stages - 1) / (microbatches + stages - 1)


def idle(trace: Trace) -> list[float]:
    """Return how long each worker idles, in the trace's unit."""
    busy = (trace.frame["end_s"] - trace.frame["start_s"]).groupby(trace.frame["worker"]).sum()
    return [trace.makespan_s - float(busy.get(worker, 0)) for worker in range(trace.workers)]


def errors(grid: Grid = GRID) -> tuple[float, float]:
    """Return how far bubbles are from the formula at most: drawn in slots, and simulated.

    Drawn are backwards of one and of two slots, and forwards alone.
    """
    drawn, simulated = [], []
    for k, t in grid:
        table = schedules.gpipe(k, t).take(1)
        slots = [Trace.from_schedule(table, each) for each in (TWO_SLOTS, EQUAL_SLOTS)]
        slots.append(Trace.from_schedule(schedules.inference(k).take(t)))
        drawn += [abs(trace.bubble - bubble(k, t)) for trace in slots]
        trace = pk.simulate(table, pk.Profile.uniform(k, 0.0123, 0.0307))
        simulated.append(abs(trace.bubble - bubble(k, t)))
    return max(drawn), max(simulated)


def findings(grid: Grid = GRID) -> list[Finding]:
    """Return what section 3.2 claims of the bubble."""
    as_stated = all(
        idle(Trace.from_schedule(schedules.gpipe(k, t).take(1), slots))
        == [(k - 1) * sum(slots.values())] * k
        for (k, t), slots in product(grid, (EQUAL_SLOTS, TWO_SLOTS))
    )
    values = [Trace.from_schedule(schedules.gpipe(k, t).take(1)).bubble for k, t in PRINTED]
    k, t = map(max, zip(*grid, strict=True))
    note = f"{len(grid)} pairs of K up to {k} and T up to {t}; the second is simulated"
    return [
        Finding.exact("gpipe-eq-bubble", list(errors(grid)), note),
        Finding.exact("gpipe-bubble-values", values),
        Finding.exact("gpipe-idle-per-accelerator", as_stated, "backwards of one and of two slots"),
    ]


def emulated(stages: int, counts: Sequence[int], pass_s: float, repeats: int) -> list[float]:
    """Return the emulated bubble for each number of microbatches, the least of several runs.

    All stages are alike: ``pass_s`` seconds for a forward, and as many for a backward.
    """
    equal = pk.Profile.uniform(stages, pass_s, pass_s)
    return [
        min(
            pk.emulate(schedules.gpipe(stages, t).take(1), equal).trace.bubble
            for _ in range(repeats)
        )
        for t in counts
    ]


def amortised_finding(
    counts: Sequence[int], found: Sequence[float], how: str, picture: str
) -> Finding:
    """Return the bubbles of four stages that :func:`emulated` found; ``how`` says it in words."""
    formula = ", ".join(f"{bubble(4, t):.3f}" for t in counts)
    note = f"K = 4, {how}; by the formula {formula}"
    return Finding.emulated("gpipe-bubble-amortised", list(found), note, picture)


def figure(counts: Sequence[int], found: Sequence[float]) -> tuple[go.Figure, pd.DataFrame]:
    """Return the bubble over T for 2, 4 and 8 stages with the emulated ones of 4, and its rows."""
    rows = [(f"K = {k}", t, 100 * bubble(k, t), "exact") for k in (2, 4, 8) for t in range(1, 33)]
    points = zip(counts, found, strict=True)
    rows += [("K = 4, emulated", t, 100 * share, "emulated") for t, share in points]
    x, y = "microbatches of a minibatch, T", "bubble (%)"
    numbers = pd.DataFrame(rows, columns=["K", x, y, "label"])
    title = f"Four stages idle {100 * found[0]:.0f} % with {counts[0]} microbatch, "
    title += f"{100 * found[-1]:.0f} % with {counts[-1]}"
    drawn = plots.curves(numbers, x, y, "K", title=title, label="emulated, lines exact")
    drawn.data[-1].update(mode="markers", marker={"symbol": "square", "size": 8})
    return drawn, numbers
