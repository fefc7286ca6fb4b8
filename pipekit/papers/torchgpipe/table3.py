"""torchgpipe's Table 3 beside the memory model, and small U-Nets beside both (section 4.2.2)."""

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from pipekit import models, plots
from pipekit.papers.drawing import named_rows
from pipekit.papers.findings import Finding
from pipekit.papers.torchgpipe import memory
from pipekit.papers.torchgpipe.memory import GIB, PIXELS, Row
from pipekit.papers.torchgpipe.settings import TABLE3, printed_cell
from pipekit.papers.torchgpipe.speed_tables import plain_sgd
from pipekit.plans import Recompute

TRIED: Sequence[tuple[int, int, Recompute]] = (
    (1, 1, "never"),
    (1, 4, "except_last"),
    (2, 4, "never"),
    (2, 4, "except_last"),
    (4, 8, "except_last"),
)
"""(stages, microbatches, recomputed) of the small U-Nets that are trained."""

LOSS = nn.BCEWithLogitsLoss()


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
            "largest B (simulated)": memory.most_convolutions(cell),
        }
        for cell, row in zip(TABLE3, rows, strict=True)
    )


def figure(table: pd.DataFrame) -> tuple[go.Figure, pd.DataFrame]:
    """Return the bytes of all devices, paper's and ours, and the rows drawn."""
    columns = {
        "paper, reserved": "GiB (paper)",
        "simulated, live": "GiB (simulated)",
        "exact, weights and gradients": "of it weights and gradients (exact)",
    }
    numbers = pd.DataFrame({name: table[column] for name, column in columns.items()})
    return named_rows(
        numbers.set_index(table["U-Net"] + " " + table["(B, C)"]),
        "GiB",
        title=f"Table 3's bytes are met within {(table['simulated / paper'] - 1).abs().max():.0%}",
        label="paper, simulated, exact",
        x_title="GiB of all devices",
    )


def small_unets(size: Sequence[int], rows: int, pixels: int) -> pd.DataFrame:
    """Really train small U-Nets in all ways of :data:`TRIED`, their peaks beside simulated ones.

    Args:
        size: B and C.
        rows: of the batch.
        pixels: of an image's side.

    Returns:
        A row a worker: what ("n = 2"), measured and simulated, in bytes and MB.
    """
    network = models.unet(*size)
    inputs, targets = torch.rand(rows, 3, pixels, pixels), torch.rand(rows, 1, pixels, pixels)
    found = pd.concat(
        memory.measured_beside_simulated(
            network,
            inputs,
            targets,
            stages=stages,
            microbatches=m,
            recompute=mode,
            loss=LOSS,
            optimizer=plain_sgd,
        ).assign(what=f"n = {stages}")
        for stages, m, mode in TRIED
    )
    found[["measured (MB)", "simulated (MB)"]] = found[["measured", "simulated"]] / 1e6
    return found


def largest_error(found: pd.DataFrame) -> float:
    """Return how far simulated peaks are from measured ones at most, relatively."""
    return float((found["simulated"] / found["measured"] - 1).abs().max())


def small_figure(found: pd.DataFrame) -> go.Figure:
    """Draw measured peaks over simulated ones, a point a worker of :func:`small_unets`."""
    return plots.points(
        found,
        x="simulated (MB)",
        y="measured (MB)",
        color="what",
        title=f"Peak bytes of real U-Nets are predicted within {largest_error(found):.1%}",
        label="measured, simulated",
        diagonal=True,
    )


def naive_finding(row: Row, error: float, trained_rows: int, picture: str) -> Finding:
    """Return naive-1's memory: simulated, or measured if the paper's batch is really trained.

    Args:
        row: naive-1's.
        error: of the memory model on small U-Nets.
        trained_rows: of a real batch of the full size; 0: none is trained.
    """
    note = (
        f"small U-Nets really trained: measured and simulated peaks differ by {error:.1%} at most"
    )
    gib, label = row.total, "simulated"
    if trained_rows:
        real = memory.measured_beside_simulated(
            models.unet(*row.size),
            torch.rand(trained_rows, 3, PIXELS, PIXELS),
            torch.rand(trained_rows, 1, PIXELS, PIXELS),
            stages=1,
            microbatches=1,
            recompute="never",
            loss=LOSS,
            optimizer=plain_sgd,
        )
        own, predicted = (float(real[each][0]) / GIB for each in ("measured", "simulated"))
        note += (
            f"; naive-1 really trained with {trained_rows} rows: {own:.2f} GiB measured, "
            f"{predicted:.2f} simulated"
        )
        if trained_rows == TABLE3[0].batch:
            gib, label = own, "measured"
    return Finding("torchgpipe-table3-naive-1-memory", [gib, gib], label, note, picture)


def findings(rows: Sequence[Row], picture: str) -> list[Finding]:
    """Return what Table 3 claims of memory and parameters.

    Args:
        rows: of :data:`TABLE3`, naive-1 first.
    """
    naive, first = rows[:2]
    largest = max(layer.parameter_bytes for layer in memory.profile_of(*first.size).layers)
    note = "live bytes, without an allocator's cache and fragments; partition of the repository"
    first_note = (
        f"; the paper's two rows are {paper_gib(first) / paper_gib(naive) - 1:.0%} apart. Beside "
        "its weights and gradients the paper's pipeline-1 has "
        f"{paper_gib(first) - first.weights:.1f} GiB and ours {first.total - first.weights:.1f}: a "
        f"backward makes a layer's gradient, up to {largest / GIB:.2f} GiB, before it is added to "
        "the sum, and cuDNN has workspaces; neither is in our model"
    )
    made = [
        Finding.simulated(
            f"torchgpipe-table3-{row.name}-memory",
            [row.total, row.fullest, row.total - before.total],
            note + (first_note if row is first else ""),
            picture,
        )
        for before, row in pairwise(rows)
    ]
    made += [Finding.exact(f"torchgpipe-table3-{r.name}-params", r.parameters) for r in rows]
    sizes = [(5, 64), *(row.size for row in rows[:2]), (1, 8), (3, 7)]
    return [
        *made,
        Finding.exact("torchgpipe-table3-growth", rows[-1].parameters / naive.parameters),
        Finding.exact(
            "torchgpipe-unet-structure",
            all(memory.is_symmetric(*size) for size in sizes),
            f"the layers of (B, C) in {sizes}",
        ),
        Finding.exact(
            "torchgpipe-intro-gpt2",
            memory.gpt2_parameters(48, 1600, 50_257, 1024),
            "GPT-2's own vocabulary and context, 50,257 and 1,024",
        ),
    ]
