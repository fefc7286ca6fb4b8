"""The memory of torchgpipe's Table 1: what is alive with and without its components (4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import torch

from experiments.recorded.findings import Finding
from experiments.study.differences import largest_difference
from experiments.study.figures import named_rows
from experiments.torchgpipe import graph
from experiments.torchgpipe.ablation import checkpointing
from experiments.torchgpipe.ablation.components import ROWS, live_bytes
from experiments.torchgpipe.ablation.streams import copies_of
from experiments.torchgpipe.ablation.table1 import ALL, NAMES, Table1
from experiments.torchgpipe.minibatch import step
from experiments.torchgpipe.settings import TABLE1, printed_cell
from pipekit import PipelinedModule, Watch, models

PAPER, LIVE = "GiB (paper, reserved)", "GiB (simulated, live)"
SMALL = "MB (measured, live, small U-Net)"
ARRIVING = "GiB of all microbatches' arriving gradients (exact)"
RESERVED = "GiB (simulated, reserved, a pool a stream)"
POOLS = "on a GPU each stream has a pool of memory of its own"
"""What makes the rows with streams miss where no GPU is."""


@dataclass(frozen=True)
class SmallUNet:
    """A U-Net (5, C) that is really trained, cut as Table 1's."""

    channels: int  # C
    pixels: int  # of an image's side
    rows: int  # of a microbatch

    def live_mb(self) -> dict[str, float]:
        """Return the MB of all devices at their peaks by row of Table 1, measured.

        Streams change nothing that lives.
        """
        model, x = models.unet(5, self.channels), torch.rand(self.rows, 3, self.pixels, self.pixels)
        balance, m = TABLE1.balance, TABLE1.microbatches
        alike = {(has.order, has.portals) for has in ROWS.values()}
        peaks = {
            (order, portals): checkpointing.total_peak(
                model, x, balance, m, in_order=order, portals=portals
            )
            for order, portals in sorted(alike)
        }
        return {name: peaks[has.order, has.portals] / 1e6 for name, has in ROWS.items()}

    def modules(self, seed: int) -> pd.DataFrame:
        """Return what :class:`pipekit.PipelinedModule` does without each row's missing components.

        A row each: whether its backwards keep their order, and how far its numbers are from those
        with all components.
        """
        model, x = models.unet(5, self.channels), torch.rand(8, 3, self.pixels, self.pixels)
        steps, orders = {}, {}
        for name, has in ROWS.items():
            module = PipelinedModule(
                model, TABLE1.balance, chunks=8, without=has.missing, watch=Watch(trace=True)
            )
            steps[name] = step(module, x, seed)
            orders[name] = graph.follows_the_order(graph.device_orders(module.trace), 8)
        differences = [largest_difference(steps[name], steps[ALL]) for name in ROWS]
        return pd.DataFrame(
            {
                "components": NAMES,
                "backwards in order (measured)": orders.values(),
                "largest |difference| to all components (exact)": differences,
            }
        )


def frame(table: Table1, live_mb: Mapping[str, float]) -> pd.DataFrame:
    """Return a row for each of Table 1's: paper's bytes, simulated, measured, arriving.

    ``live_mb`` was measured on a small U-Net.
    """
    rows = []
    for name, has in ROWS.items():
        arriving = copies_of(table.traces[name]).query("purpose == 'gradient'")["bytes"].sum()
        live = sum(live_bytes(TABLE1, table.profile, has))
        printed = printed_cell(1, f"{name}-memory")
        reserved = reserved_bytes(live, float(arriving), has.streams, TABLE1.microbatches)
        gib = [each / 2**30 for each in (live, reserved, float(arriving))]
        rows.append((name, printed, live_mb[name], *gib))
    columns = ["components", PAPER, SMALL, LIVE, RESERVED, ARRIVING]
    return pd.DataFrame(rows, columns=columns)


def reserved_bytes(live: float, arriving: float, streams: bool, microbatches: int) -> float:
    """Return what an allocator reserves that keeps a pool a stream, as PyTorch's does on CUDA.

    A block that was freed is given again only to the stream that it was allocated on (PyTorch,
    "CUDA semantics", memory management).  Gradients that arrive are allocated by the stream that
    copies them: with one for all microbatches the next takes the place of the last; with a stream
    for each microbatch every one has a place of its own.  What else arrives is live all the time.

    Args:
        live: bytes, without gradients that arrive.
        arriving: bytes of these, of all microbatches.
        streams: whether each microbatch has a stream for its copies.
        microbatches: m.
    """
    return live + arriving * (1 if streams else 1 / microbatches)


def figure(memory: pd.DataFrame) -> go.Figure:
    """Draw each row's bytes over those with the order alone; see :func:`frame`."""
    kinds = {"paper, reserved": PAPER, "simulated, live": LIVE, "measured, live, small": SMALL}
    times = {name: (memory[column] / memory[column][1]).tolist() for name, column in kinds.items()}
    points, _ = named_rows(
        pd.DataFrame(times, index=NAMES),
        "times",
        title=f"Without the order {times['measured, live, small'][0]:.1f} times as much is alive",
        label="paper, simulated, measured",
        x_title="bytes of all devices over those with the order alone",
    )
    return points


def findings(memory: pd.DataFrame, small: SmallUNet, picture: str) -> list[Finding]:
    """Return what Table 1 claims of memory.

    ``memory`` is what :func:`frame` returned for the ``small`` U-Net.
    """
    rows = memory.set_index("components")
    live, arriving = rows[SMALL], rows[ARRIVING]
    cause = (
        f"tensors that are alive, on a CPU, U-Net (5, {small.channels}), {small.pixels} pixels, "
        f"microbatches of {small.rows} rows: streams do not show there. On a GPU each has memory "
        "of its own; with one for each microbatch, arriving gradients are kept in memory m times: "
        f"{arriving['dep-streams']:.1f} GiB at the paper's size, {arriving[ALL]:.1f} with portals"
    )
    baseline, ordered, streams, portals = values = live.tolist()
    pattern = [baseline - ordered, streams - ordered, streams - portals]
    claims = [f"torchgpipe-table1-{name}-memory" for name in NAMES]
    pooled = [float(each) for each in rows[RESERVED]]
    changed = "reserved by an allocator with a pool for each stream, at the paper's size"
    each = [
        Finding.measured(claim, values, cause, picture).because(POOLS, pooled, changed=changed)
        for claim in claims
    ]
    baseline, ordered, streams, portals = pooled
    steps = [baseline - ordered, streams - ordered, streams - portals]
    shape = Finding.measured("torchgpipe-table1-memory-pattern", pattern, f"MB; {cause}", picture)
    return [*each, shape.because(POOLS, steps, changed=changed)]
