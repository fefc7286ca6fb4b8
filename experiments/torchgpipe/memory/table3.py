"""torchgpipe's Table 3: the largest U-Net on 1, 2, 4 and 8 devices (section 4.2.2)."""

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
import plotly.graph_objects as go

from experiments.recorded.drawing import named_rows
from experiments.recorded.findings import Finding
from experiments.torchgpipe.memory import small, unets
from experiments.torchgpipe.memory.structure import is_symmetric
from experiments.torchgpipe.memory.unets import GIB, PIXELS, Row
from experiments.torchgpipe.settings import TABLE3, printed_cell


def paper_gib(row: Row) -> float:
    """Return the GiB that the paper prints for a row."""
    found = printed_cell(3, f"{row.name}-memory")
    assert found is not None  # the ledger has all five
    return found


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return Table 3: a row a cell of :data:`TABLE3`, in the same order."""
    return pd.DataFrame(
        {
            "U-Net": row.name,
            "(B, C)": str(row.size),
            "parameters (exact)": f"{row.parameters:,}",
            "GiB (paper)": paper_gib(row),
            "GiB (simulated)": row.total,
            "simulated / paper": row.total / paper_gib(row),
            "of it weights and gradients (exact)": row.weights,
            "fullest device": row.fullest,
            "own partition": row.by_size,
            "partitions agree": row.as_published,
            "largest B (paper)": row.size[0],
            "largest B (simulated)": unets.most_convolutions(cell),
        }
        for cell, row in zip(TABLE3, rows, strict=True)
    )


def figure(table: pd.DataFrame) -> tuple[go.Figure, pd.DataFrame]:
    """Return the bytes of all devices, paper's and ours, and the rows drawn."""
    columns = {
        "GiB (paper)": "paper, reserved",
        "GiB (simulated)": "simulated, live",
        "of it weights and gradients (exact)": "exact, weights and gradients",
    }
    numbers = table[list(columns)].rename(columns=columns)
    return named_rows(
        numbers.set_index(table["U-Net"] + " " + table["(B, C)"]),
        "GiB",
        title=f"Table 3's bytes are met within {(table['simulated / paper'] - 1).abs().max():.0%}",
        label="paper, simulated, exact",
        x_title="GiB of all devices",
    )


def naive_finding(row: Row, error: float, trained_rows: int, picture: str) -> Finding:
    """Return naive-1's memory: simulated, or measured if the paper's batch is really trained.

    ``error`` is the memory model's on small U-Nets; a real batch of the full size has
    ``trained_rows``, 0 if none is trained.
    """
    note = (
        f"small U-Nets really trained: measured and simulated peaks differ by {error:.1%} at most"
    )
    gib, label = row.total, "simulated"
    if trained_rows:
        real = small.beside_simulated(row.size, trained_rows, PIXELS, [(1, 1, "never")])
        own, predicted = (float(real[each][0]) / GIB for each in ("measured", "simulated"))
        note += (
            f"; naive-1 really trained with {trained_rows} rows: {own:.2f} GiB measured, "
            f"{predicted:.2f} simulated"
        )
        if trained_rows == TABLE3[0].batch:
            gib, label = own, "measured"
    return Finding("torchgpipe-table3-naive-1-memory", [gib, gib], label, note, picture)


def findings(rows: Sequence[Row], picture: str) -> list[Finding]:
    """Return what Table 3 claims of memory and parameters, of the rows of :data:`TABLE3`."""
    naive, first = rows[:2]
    largest = max(layer.parameter_bytes for layer in unets.profile_of(*first.size).layers)
    live = "live bytes, without an allocator's cache and fragments; partition of the repository"
    beside = (
        f"{live}; the paper's two rows are {paper_gib(first) / paper_gib(naive) - 1:.0%} apart. "
        "Beside its weights and gradients the paper's pipeline-1 has "
        f"{paper_gib(first) - first.weights:.1f} GiB and ours {first.total - first.weights:.1f}: a "
        f"backward makes a layer's gradient, up to {largest / GIB:.2f} GiB, before it is added to "
        "the sum, and cuDNN has workspaces; neither is in our model"
    )
    bytes_ = [
        Finding.simulated(
            f"torchgpipe-table3-{row.name}-memory",
            [row.total, row.fullest, row.total - before.total],
            beside if row is first else live,
            picture,
        )
        for before, row in pairwise(rows)
    ]
    counts = [Finding.exact(f"torchgpipe-table3-{r.name}-params", r.parameters) for r in rows]
    sizes = [(5, 64), naive.size, first.size, (1, 8), (3, 7)]
    symmetric = all(is_symmetric(*size) for size in sizes)
    growth, gpt2 = (
        rows[-1].parameters / naive.parameters,
        unets.gpt2_parameters(48, 1600, 50_257, 1024),
    )
    own = "GPT-2's own vocabulary and context, 50,257 and 1,024"
    return [
        *bytes_,
        *counts,
        Finding.exact("torchgpipe-table3-growth", growth),
        Finding.exact("torchgpipe-unet-structure", symmetric, f"the layers of (B, C) in {sizes}"),
        Finding.exact("torchgpipe-intro-gpt2", gpt2, own),
    ]
