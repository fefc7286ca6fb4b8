"""torchgpipe's Tables 2 and 4 beside our rates, and what the cells say of one another (4.2)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from experiments.recorded.findings import Finding
from experiments.study.tables import printed
from experiments.torchgpipe.settings import (
    TABLE2,
    TABLE4,
    Benchmark,
    Protocol,
    hardware,
    plain_sgd,
    printed_cell,
)
from experiments.torchgpipe.speed import rates
from experiments.torchgpipe.speed.rates import Throughput
from experiments.torchgpipe.speed.small import ROUNDS
from pipekit import plots
from pipekit.models import PUBLISHED

CELLS = (*TABLE2.values(), *TABLE4)
WHOSE = "paper", "emulated"
BASELINE = 1, 2
"""(m, n) over which Table 2's speedups are."""

EARLY = "stages recompute while they wait for their gradient"
"""What makes more stages faster even with a single microbatch."""

LATE = "they recompute once it is there"
"""What is done instead."""

_NAIVE = "naive-1-throughput"

Rates = Mapping[Benchmark, Throughput]


def table2(found: Rates) -> pd.DataFrame:
    """Return a row a cell of Table 2; speedups are over (m, n) = (1, 2)."""
    return pd.DataFrame(
        _compared(cell, TABLE2[BASELINE], found, f"ours-{cell.name}", 2)
        | {"GPipe (paper)": printed_cell(2, f"gpipe-{cell.name}") or 1.0}
        for cell in TABLE2.values()
    )


def table4(found: Rates) -> pd.DataFrame:
    """Return a row a cell of Table 4; speedups are over naive-1."""
    return pd.DataFrame(
        _compared(cell, TABLE4[0], found, f"{cell.name}-speedup", 4) for cell in TABLE4
    )


def figure(second: pd.DataFrame, fourth: pd.DataFrame) -> tuple[go.Figure, pd.DataFrame]:
    """Return our speedups of Tables 2 and 4 over the paper's, and the rows drawn."""
    m = second["cell"].str.extract(r"m(\d+)")[0]
    both = [second.assign(series="AmoebaNet-D, m = " + m)[1:], fourth.assign(series="U-Net")[1:]]
    x, y = "speedup in the paper", "speedup, emulated"
    drawn = pd.concat(both).rename(columns={"paper": x, "emulated": y})
    close = (drawn["emulated / paper"] - 1).abs() <= 0.2
    title = f"{close.sum()} of {len(drawn)} speedups are within 20 % of the paper's"
    how = {"title": title, "label": "emulated"}
    return plots.points(drawn, x, y, "series", diagonal=True, log=True, **how), drawn


def slots(second: pd.DataFrame) -> pd.DataFrame:
    """Return the time of a row in a slot, with few microbatches and with many, by n.

    ``second`` is what :func:`table2` returned.
    """
    by_key = dict(zip(TABLE2, second.to_dict("records"), strict=True))
    table = pd.DataFrame({"n": [2, 4, 8]})
    for whose in WHOSE:
        few, many = f"m = 4 ({whose})", f"m = 32 ({whose})"
        for m, column in (4, few), (32, many):
            keys = [(m, n) for n in table["n"]]
            table[column] = [rates.slot(TABLE2[key], by_key[key][whose]) for key in keys]
        table[f"ratio ({whose})"] = table[few] / table[many]
    return table


def gain_of_free_links(found: Rates) -> float:
    """Return how many times as fast any cell is, at most, if links cost nothing (simulated)."""
    rows = rates.least_rows(CELLS)
    profiles = {cell: rates.profile_of(cell.network, rows[cell.network]) for cell in CELLS}
    free = {cell: rates.simulated(cell, profile, None) for cell, profile in profiles.items()}
    return max(cell.batch / free[cell].makespan_s / found[cell].simulated for cell in CELLS)


def setting_findings(seed: int) -> list[Finding]:
    """Return whether GPUs, protocol and partitions are set up as the paper says.

    The seed is that of random costs to be partitioned.
    """
    defaults = plain_sgd([nn.Parameter(torch.zeros(1))]).defaults
    amoebanet = PUBLISHED["amoebanet-d-18-256"].build(device="meta")
    gpus, protocol = "torchgpipe-setup-hardware", "torchgpipe-table2-protocol"
    plain = not (defaults["momentum"] or defaults["weight_decay"])
    parameters, rows = sum(p.numel() for p in amoebanet.parameters()), [c.rows for c in TABLE4[1:]]
    bounded = rates.within_the_costliest_layer(1000, seed)
    preset = f"preset: {hardware()} (CUDA and the host are in no model)"
    one = "preset; a flush makes all batches alike, so that one stands for the epochs"
    blocks = "block partitions of 1,000 random sequences of costs"
    return [
        Finding.simulated(gpus, hardware() == printed(gpus), preset),
        Finding.exact(protocol, str(Protocol()) == printed(protocol) and plain, one),
        Finding.exact("torchgpipe-amoebanet-l-convention", parameters),
        Finding.exact("torchgpipe-table4-microbatch-sizes", rows),
        Finding.exact("torchgpipe-balance-discrepancy", bounded, blocks),
    ]


def recomputed_late() -> dict[str, float]:
    """Return Table 2's speedups of cells of one microbatch, if it were recomputed late, by cell.

    See :func:`.rates.recomputed_late_speedup`.
    """
    base = TABLE2[BASELINE]
    whole = (cell for (m, _), cell in TABLE2.items() if m == 1 and cell != base)
    costs = rates.profile_of(base.network, rates.least_rows(CELLS)[base.network])
    return {cell.name: rates.recomputed_late_speedup(cell, base, costs) for cell in whole}


def findings2(second: pd.DataFrame, picture: str, late: Mapping[str, float]) -> list[Finding]:
    """Return what Table 2 claims, cell by cell.

    ``second`` is what :func:`table2` returned, ``late`` what :func:`recomputed_late` did.
    """
    rows = dict(zip(TABLE2, second.to_dict("records"), strict=True))
    found = {key: float(row["emulated"]) for key, row in rows.items()}
    ratios = slots(second)
    paper, ours = ([f"{r:.2f}" for r in ratios[f"ratio ({whose})"]] for whose in WHOSE)
    at = ", ".join(f"{ratio} at n = {n}" for ratio, n in zip(paper, ratios["n"], strict=True))
    made = [Finding.exact("torchgpipe-table2-baseline", found[BASELINE])]
    for (m, n), cell in TABLE2.items():
        note = "partition and batch of the paper's repository; simulated "
        note += f"{rows[m, n]['simulated']:.3f}"
        if m == 1:
            note += "; all but the last stage recompute while they wait for their gradient"
        if (m, n) == (1, 4):
            note += "; the repository's README has 1.006 in this cell"
        elif n == 4:
            note += (
                f"; a slot's ratio of m = 4 to m = 32 is {at} in the paper and {', '.join(ours)} "
                "here: the paper's (4, 4) is slow by its own neighbours, and both its n = 4 cells "
                "by our costs, which have one efficiency for all layers"
            )
        if (m, n) != BASELINE:
            name = f"torchgpipe-table2-ours-{cell.name}"
            cell_found = Finding.of(name, found[m, n], rows[m, n]["label"], note, picture)
            if cell.name in late:
                cell_found = cell_found.because(EARLY, late[cell.name], changed=LATE)
            made.append(cell_found)
    kind = _weakest(row["label"] for row in rows.values())
    trend = Finding.of("torchgpipe-table2-trend", rates.grows(found), kind, "", picture)
    return [*made, trend]


def findings4(fourth: pd.DataFrame, picture: str) -> list[Finding]:
    """Return what Table 4 claims of speedups and rates; ``fourth`` is :func:`table4`'s."""
    rows = fourth.set_index("cell")
    made = []
    for before, cell in pairwise(TABLE4[1:]):
        pair = [rows["emulated"][each.name] for each in (before, cell)]
        note = (
            "published partition, skips included; torchgpipe's algorithm on our costs would give "
            f"{rows['own partition (simulated)'][cell.name]:.2f} (simulated): the layers' costs "
            "differ on the real P40"
        )
        claim = f"torchgpipe-table4-{cell.name}-speedup"
        kind = _weakest(rows["label"][each.name] for each in (before, cell))
        made.append(Finding.of(claim, pair, kind, note, picture))
    for cell in TABLE4:
        naive = float(rows["rows/s (simulated)"]["naive-1"]) / (printed_cell(4, _NAIVE) or 1)
        estimate = (
            "a roofline at half of the P40's peak for every layer, nothing fitted: naive-1 is "
            f"{naive:.2f} times as fast as the paper's, which all rows share, the rest is the "
            "speedup's"
        )
        rate = float(rows["rows/s (simulated)"][cell.name])
        claim = f"torchgpipe-table4-{cell.name}-throughput"
        made.append(
            Finding.simulated(claim, rate, estimate, picture).because(
                "the share of its peak that a P40 attains",
                rate / naive,
                changed="fitted on naive-1's cell",
            )
        )
    closed = rates.closed_form(2)
    return [*made, Finding.exact("torchgpipe-table4-pipeline-1-closed-form", closed)]


def pipeline_1_finding(
    small: pd.DataFrame, unet_size: Sequence[int], run: str, fourth: pd.DataFrame
) -> Finding:
    """Return the cost of recomputation on one device, in words what was ``run``.

    ``small`` are the rows of a U-Net (B, C) really trained, naive-1 and pipeline-1 first;
    ``fourth`` is :func:`table4`'s.
    """
    emulated = fourth.set_index("cell")["emulated"]["pipeline-1"]
    size = ", ".join(map(str, unet_size))
    note = f"U-Net ({size}), CPU time of one core, {run}; for the P40 {emulated:.3f} (emulated)"
    claim, rounds = "torchgpipe-table4-pipeline-1-speedup", small[ROUNDS][1]
    return Finding.measured(claim, float(median(rounds)), note).over(rounds)


def _weakest(labels: Iterable[str]) -> str:
    return "emulated" if set(labels) == {"emulated"} else "simulated"


def _compared(
    cell: Benchmark, first: Benchmark, found: Rates, claim: str, table: int
) -> dict[str, object]:
    rate, base, paper = found[cell], found[first], printed_cell(table, claim) or 1.0
    emulated = rate.emulated / base.emulated
    return {
        "cell": cell.name,
        "batch": cell.batch,
        "partition": " ".join(map(str, cell.balance)),
        "paper": paper,
        "emulated": emulated,
        "simulated": rate.simulated / base.simulated,
        "emulated / paper": emulated / paper,
        "own partition (simulated)": rate.blocks / base.blocks,
        "label": _weakest((rate.label, base.label)),
        "rows/s (emulated)": rate.emulated,
        "rows/s (simulated)": rate.simulated,
        "fullest device (GiB, simulated)": rate.peak_bytes / 2**30,
    }
