"""Searching for the largest AmoebaNet-D that fits, as GPipe's section 4.1 does."""

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.memory.accelerators import (
    BUDGET_BYTES,
    CUTS,
    GB,
    Cut,
    amoebanet,
    fullest,
)
from pipekit.papers.gpipe.memory.table1 import COLUMNS, STEP, Table1, naive_cause
from pipekit.papers.gpipe.scenarios import Scenario, named
from pipekit.papers.search import largest_that_fits

DEPTHS = (6, 12, 24, 48)
"""L to search: doubled from that of the published AmoebaNet-D; the table has the first three."""

WIDEST = 1600
"""Largest F to search, by the table's steps."""

Found = Mapping[Cut, Mapping[str, pd.DataFrame]]
"""By way to cut and column of Table 1, what :func:`search` returns."""


def search(
    scenario: Scenario, cut: Cut = "computation", depths: Iterable[int] = DEPTHS
) -> pd.DataFrame:
    """Return the widest AmoebaNet-D of each depth that fits, the largest network first.

    A row a depth at which any fits: layers (L), filters (F), parameters, fullest (GB of the fullest
    accelerator).
    """

    def gb(depth: int, steps: int) -> float:
        return fullest(amoebanet(depth, steps * STEP), scenario, cut)

    def fits(depth: int, steps: int) -> bool:
        return gb(depth, steps) * GB <= BUDGET_BYTES

    rows = []
    for depth in depths:
        if steps := largest_that_fits(partial(fits, depth), WIDEST // STEP):
            parameters = amoebanet(depth, steps * STEP).parameter_bytes / 4
            rows.append((depth, steps * STEP, parameters, gb(depth, steps)))
    frame = pd.DataFrame(rows, columns=["layers", "filters", "parameters", "fullest"])
    return frame.sort_values("parameters", ascending=False, ignore_index=True)


def search_all() -> Found:
    """Search for every column of Table 1, in both ways to cut."""
    return {cut: {name: search(named(name), cut) for name in COLUMNS} for cut in CUTS}


def parameters(found: Found, cut: Cut) -> dict[str, float]:
    """Return the parameters of the largest network by column."""
    return {name: float(frame["parameters"].iloc[0]) for name, frame in found[cut].items()}


def growth(found: Found, cut: Cut) -> list[float]:
    """Return how many times one accelerator's parameters 1, 2, 4 and 8 hold with GPipe."""
    largest = parameters(found, cut)
    return [largest[f"pipeline-{k}"] / largest["pipeline-1"] for k in (1, 2, 4, 8)]


def answers(found: Found, table: Table1) -> pd.DataFrame:
    """Return the largest networks as text: a column of Table 1 a column, a row paper and cut."""

    def size(layers: float, filters: float, parameters: float) -> str:
        return f"({layers:.0f}, {filters:.0f}): {parameters / 1e6:,.0f}M"

    paper = {name: size(own.layers, own.filters, own.parameters) for name, own in table.items()}
    ours = {
        f"cut by {cut}, simulated": {
            name: size(*frame[["layers", "filters", "parameters"]].iloc[0])
            for name, frame in frames.items()
        }
        for cut, frames in found.items()
    }
    return pd.DataFrame({"paper": paper} | ours).T


def figure(found: Found, table: Table1) -> tuple[go.Figure, pd.DataFrame]:
    """Return the parameters of the largest networks over the accelerators, and the rows drawn."""
    series = {"paper": {name: own.parameters for name, own in table.items()}}
    series |= {f"cut by {cut} (simulated)": parameters(found, cut) for cut in found}
    columns = ["accelerators", "parameters (10⁹)", "networks"]
    rows = [
        (named(name).stages, count / 1e9, whose)
        for whose, networks in series.items()
        for name, count in networks.items()
        if name.startswith("pipeline")
    ]
    eight, by_memory = (growth(found, cut)[-1] for cut in CUTS)
    title = f"Eight accelerators hold {eight:.1f} times as much as one; cut by memory "
    title += f"{by_memory:.1f} times"
    drawn = pd.DataFrame(rows, columns=columns)
    return plots.curves(drawn, *columns, title=title, label="simulated and paper"), drawn


def findings(found: Found, table: Table1, picture: str) -> list[Finding]:
    """Return what the search, and Table 1's networks, say of sections 4.1, 5 and the abstract."""
    eight, one, alone = (table[name] for name in ("pipeline-8", "pipeline-1", "naive-1"))
    own, best = (parameters(found, cut) for cut in CUTS)
    better = ", ".join(f"{ratio:.2f}" for ratio in growth(found, "memory"))
    proportional = (
        f"with GPipe's partitioner; with the best cut by memory {better}, as the paper expects of "
        "better partitioners"
    )
    largest = (
        "the largest on 8 accelerators of 8 GB with GPipe's partitioner; "
        f"{best['pipeline-8']:.3g} with the best cut by memory"
    )
    counted = "the paper's networks, counted"
    searched = (
        f"{counted}; our own search has {own['pipeline-8']:.3g} against {own['naive-1']:.3g} "
        "parameters, as Naive-1 keeps too much here"
    )
    grown = [eight.parameters / one.parameters, eight.counted / one.counted]
    larger, single = eight.counted / alone.counted, one.counted / alone.counted
    ratios = growth(found, "computation")
    return [
        Finding.simulated("gpipe-sec41-model-size-proportional", ratios, proportional, picture),
        Finding.simulated("gpipe-sec5-2-billion", own["pipeline-8"], largest),
        Finding.simulated("gpipe-sec41-naive-max-82m", own["naive-1"], naive_cause(table)),
        Finding.exact("gpipe-abstract-25x-larger", larger, searched),
        Finding.exact("gpipe-sec41-3-8x-single", single, counted),
        Finding.exact("gpipe-sec41-5-6x", grown),
    ]
