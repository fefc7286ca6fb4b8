"""Searching for the largest AmoebaNet-D that fits, as GPipe's section 4.1 does."""

from collections.abc import Iterable, Mapping

import pandas as pd

from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.memory import (
    BUDGET_BYTES,
    COLUMNS,
    CUTS,
    GB,
    Column,
    Cut,
    amoebanet,
    fullest,
)
from pipekit.papers.gpipe.scenarios import Scenario, named
from pipekit.papers.search import largest_that_fits

DEPTHS = (6, 12, 24, 48)
"""L to search: doubled from that of the published AmoebaNet-D; the table has the first three."""

STEP, WIDEST = 16, 1600
"""F to search: the table's are all multiples of 16."""

Found = Mapping[Cut, Mapping[str, pd.DataFrame]]
"""By way to cut and column of Table 1, what :func:`search` returns."""


def next_size(layers: int, filters: int) -> tuple[int, int]:
    """Return the next larger (L, F) of the search: F a step further."""
    return layers, filters + STEP


def search(
    scenario: Scenario,
    cut: Cut = "computation",
    *,
    budget_bytes: float = BUDGET_BYTES,
    depths: Iterable[int] = DEPTHS,
) -> pd.DataFrame:
    """Return the widest AmoebaNet-D of each depth that fits, the largest network first.

    Args:
        scenario: how it is trained.
        cut: how it is cut.
        budget_bytes: of an accelerator.
        depths: L to try, each with all F.

    Returns:
        A row a depth at which any fits: layers (L), filters (F), parameters, fullest (GB of the
        fullest accelerator).
    """
    rows = []
    for depth in depths:

        def gb(width: int, depth: int = depth) -> float:
            return fullest(amoebanet(depth, width), scenario, cut)

        steps = largest_that_fits(lambda n: gb(n * STEP) * GB <= budget_bytes, WIDEST // STEP)
        if width := steps * STEP:
            rows.append((depth, width, amoebanet(depth, width).parameter_bytes / 4, gb(width)))
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


def as_rows(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the searches of all columns as one table."""
    return pd.concat(frames, names=["column"])


def answers(found: Found) -> pd.DataFrame:
    """Return the largest networks as text: a column of Table 1 a column, a row paper and cut."""
    rows: dict[str, dict[str, str]] = {"paper": {}}
    for name in COLUMNS:
        column = Column.of(name)
        rows["paper"][name] = _size(column.layers, column.filters, column.parameters)
    for cut, frames in found.items():
        rows[f"cut by {cut}, simulated"] = {
            name: _size(*frame[["layers", "filters", "parameters"]].iloc[0])
            for name, frame in frames.items()
        }
    return pd.DataFrame(rows).T


def curves(found: Found) -> pd.DataFrame:
    """Return the rows of a figure: accelerators, parameters (billions), networks (whose)."""
    printed = {name: Column.of(name).parameters for name in COLUMNS}
    series = {"paper": printed}
    series |= {f"cut by {cut} (simulated)": parameters(found, cut) for cut in found}
    rows = [
        (Column.of(name).scenario.stages, count / 1e9, whose)
        for whose, networks in series.items()
        for name, count in networks.items()
        if name.startswith("pipeline")
    ]
    return pd.DataFrame(rows, columns=["accelerators", "parameters", "networks"])


def findings(found: Found, counts: Mapping[str, int], naive_cause: str) -> list[Finding]:
    """Return what the search says of sections 4.1, 5 and the abstract.

    Args:
        found: what :func:`search_all` returned.
        counts: exact parameters of the paper's own networks, by column.
        naive_cause: why Naive-1 keeps more here than in the paper.
    """
    eight, one, alone = (counts[name] for name in ("pipeline-8", "pipeline-1", "naive-1"))
    own, best = (parameters(found, cut) for cut in CUTS)
    columns = [Column.of(name).parameters for name in ("pipeline-8", "pipeline-1")]
    return [
        Finding.simulated(
            "gpipe-sec41-model-size-proportional",
            growth(found, "computation"),
            "with GPipe's partitioner; with the best cut by memory "
            f"{', '.join(f'{r:.2f}' for r in growth(found, 'memory'))}, as the paper expects of "
            "better partitioners",
            "largest.svg",
        ),
        Finding.simulated(
            "gpipe-sec5-2-billion",
            own["pipeline-8"],
            "the largest on 8 accelerators of 8 GB with GPipe's partitioner; "
            f"{best['pipeline-8']:.3g} with the best cut by memory",
        ),
        Finding.simulated("gpipe-sec41-naive-max-82m", own["naive-1"], naive_cause),
        Finding.exact(
            "gpipe-abstract-25x-larger",
            eight / alone,
            f"the paper's networks, counted; our own search has {own['pipeline-8']:.3g} against "
            f"{own['naive-1']:.3g} parameters, as Naive-1 keeps too much here",
        ),
        Finding.exact("gpipe-sec41-3-8x-single", one / alone, "the paper's networks, counted"),
        Finding.exact("gpipe-sec41-5-6x", [columns[0] / columns[1], eight / one]),
    ]


def _size(layers: float, filters: float, parameters: float) -> str:
    return f"({layers:.0f}, {filters:.0f}): {parameters / 1e6:,.0f}M"
