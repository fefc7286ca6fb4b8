"""GPipe's Table 1 beside the memory model, at the paper's sizes (section 4.1)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from pipekit.clusters import gpipe_tpu_v2
from pipekit.ledger import claims
from pipekit.models import PUBLISHED, amoebanet_d
from pipekit.papers.costs import images
from pipekit.papers.drawing import named_rows, with_line
from pipekit.papers.findings import Finding, printed
from pipekit.papers.gpipe.memory import accelerators
from pipekit.papers.gpipe.memory.accelerators import BUDGET_BYTES, GB, Cut, amoebanet, held
from pipekit.papers.gpipe.scenarios import MINIBATCH, PIXELS, Scenario, named
from pipekit.papers.trainings.hooks import noted
from pipekit.profiling import Profile

COLUMNS = ("naive-1", "pipeline-1", "pipeline-2", "pipeline-4", "pipeline-8")
STEP = 16
"""F of the table are all multiples of it."""

SERIES = {"parameters": "parameters, 12 bytes each", "total": "with activations"}
"""Of the figure, by their columns in the table."""

ROW_PX, END_GB = 22, 12
"""Of the figure: a row, and the end of the axis; what is longer is cut off there."""


@dataclass(frozen=True)
class Column:
    """A column of Table 1 as printed, and as the memory model has it."""

    scenario: Scenario  # how it was trained
    layers: int  # L, normal cells of a group
    filters: int  # F
    parameters: float  # how many, as printed
    parameter_gb: float  # total peak memory of parameters, in GB, as printed
    activation_gb: float  # total peak memory of activations, in GB, as printed

    @classmethod
    def of(cls, name: str) -> "Column":
        """Return a column by name, say "pipeline-2", as the ledger of claims has it."""
        key = f"gpipe-table1-{name}"
        layers, filters = map(int, re.findall(r"\d+", printed(f"{key}-config")))
        parameters = float(str(claims.load()[f"{key}-params"].target))
        weights, kept = (float(printed(f"{key}-{of}-memory")) for of in ("param", "activation"))
        return cls(named(name), layers, filters, parameters, weights, kept)

    @property
    def mean_gb(self) -> float:
        """GB of parameters and activations on an accelerator, on average, as printed."""
        return (self.parameter_gb + self.activation_gb) / self.scenario.stages

    @cached_property
    def network(self) -> Profile:
        """The bytes of the column's network."""
        return amoebanet(self.layers, self.filters)

    @cached_property
    def held(self) -> pd.DataFrame:
        """What every accelerator holds, cut by GPipe's partitioner; see :func:`held`."""
        return held(self.network, self.scenario)

    @cached_property
    def best_gb(self) -> float:
        """GB of the fullest accelerator, with the best cut by memory."""
        return accelerators.fullest(self.network, self.scenario, "memory")

    @property
    def counted(self) -> int:
        """The network's parameters."""
        return round(self.network.parameter_bytes / 4)

    @property
    def own_activation_gb(self) -> float:
        """GB of activations on all accelerators, simulated."""
        return float(self.held["activations"].sum())

    def next_gb(self, cut: Cut = "computation") -> float:
        """Return the GB of the fullest accelerator for the next network of the paper's search."""
        return accelerators.fullest(amoebanet(self.layers, self.filters + STEP), self.scenario, cut)


Table1 = Mapping[str, Column]
"""By the column's name."""


def table1() -> Table1:
    """Return every column of Table 1."""
    return {name: Column.of(name) for name in COLUMNS}


def frame(table: Table1) -> pd.DataFrame:
    """Return Table 1, the paper's numbers beside ours: its columns are columns."""
    return pd.DataFrame(
        {
            name: {
                "(L, F)": f"({own.layers}, {own.filters})",
                "parameters (millions), paper": own.parameters / 1e6,
                "parameters (millions), exact": own.counted / 1e6,
                "of parameters (GB), paper": own.parameter_gb,
                "of parameters (GB), exact": 12 * own.counted / GB,
                "of activations (GB), paper": own.activation_gb,
                "of activations (GB), simulated": own.own_activation_gb,
                "mean accelerator (GB), paper": own.mean_gb,
                "fullest accelerator (GB), simulated": own.held["total"].max(),
                "the same, best cut by memory": own.best_gb,
            }
            for name, own in table.items()
        }
    )


def assumptions(table: Table1) -> pd.DataFrame:
    """Return the GB of activations by what may be assumed of them: a row a column of Table 1."""
    ways = {
        "float32": (4, False),
        "float32, gradients of parameters too": (4, True),
        "bfloat16": (2, False),
        "bfloat16, float32 gradients of parameters too": (2, True),
    }

    def gb(own: Column, width: int, gradients: bool) -> float:
        narrow = accelerators.in_precision(own.network, width)
        return float(held(narrow, own.scenario, gradients=gradients)["activations"].sum())

    found = {"paper": {name: own.activation_gb for name, own in table.items()}}
    for way, how in ways.items():
        found[way] = {name: gb(own, *how) for name, own in table.items()}
    return pd.DataFrame(found)


@cache
def convolution_gb(column: Column) -> tuple[float, float]:
    """Return the GB of nothing but what the convolutions put out, in float32 and in bfloat16.

    That is of a column's whole minibatch.  A compiler that fuses what is between two convolutions
    needs little more for the backward.
    """
    model = amoebanet_d(3 * column.layers, column.filters, device="meta")
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    sizes = noted(convolutions, lambda _, __, output: output.numel())
    with torch.device("meta"):
        model(images(MINIBATCH, PIXELS)())
    return 4 * sum(sizes) / GB, 2 * sum(sizes) / GB


COMPILER = "eager PyTorch keeps more than the TPU's compiler"
"""What makes Table 1's activations miss where nothing is recomputed."""


GIBIBYTES = "an accelerator's 8 GB are 8 x 10^9 bytes"
"""What makes two columns' networks too large: so are the paper's parameters counted."""

CUT = "GPipe's partitioner balances operations and not memory"
"""What else may make a network too large for its fullest accelerator."""


def naive_cause(table: Table1) -> str:
    """Return what the paper's Naive-1 must have done otherwise, in words."""
    float32, bfloat16 = convolution_gb(table["naive-1"])
    return (
        "eager PyTorch keeps every operator's operands, in float32; Naive-1's network has "
        f"{float32:.1f} GB of convolutions' outputs alone ({bfloat16:.1f} GB in bfloat16), so that "
        "the TPU's compiler must have kept less (fusion, recomputation)"
    )


def figure(table: Table1) -> tuple[go.Figure, pd.DataFrame]:
    """Return what every accelerator of every column holds, beside the budget, and the rows drawn.

    The paper prints totals over the accelerators, of which the mean is marked.
    """
    boards = {name: own.held for name, own in table.items()}
    rows = pd.concat(boards, names=["column", "accelerator"]).reset_index()
    piped = [own for own in table.values() if own.scenario.pipelined]
    ratios = [own.own_activation_gb / own.activation_gb for own in piped]
    title = f"With GPipe activations are {min(ratios):.2f} to {max(ratios):.2f} times the paper's"
    numbers = rows[["parameters", "total"]].rename(columns=SERIES)
    numbers["mean of the column (paper)"] = [table[name].mean_gb for name in rows["column"]]
    numbers.index = [
        f"{row.column}, {row.accelerator}: {row.total:.1f}" for row in rows.itertuples()
    ]
    gb, budget = "GB at most on each accelerator", BUDGET_BYTES / GB
    drawn, _ = named_rows(numbers, gb, title=title, label="simulated, paper")
    drawn.update_xaxes(range=[0, END_GB]).update_layout(height=ROW_PX * len(rows) + 120)
    ends = drawn.layout.yaxis.range
    return with_line(drawn, [budget] * 2, ends, f"budget, {budget:g} GB"), rows


def setup_findings() -> list[Finding]:
    """Return whether our set-up is the paper's: sizes, accelerators, bytes a parameter."""
    with torch.device("meta"):
        side = PUBLISHED["amoebanet-d-18-208"].sample(1).shape[-1]
    scenarios, board = [named(name) for name in COLUMNS], gpipe_tpu_v2()
    cut = [each.schedule().microbatches == (16 if each.pipelined else 1) for each in scenarios]
    minibatches = {each.rows * each.microbatches for each in scenarios}
    own_bytes = board.device.memory_bytes
    eight = board.workers == 8 and 8 * own_bytes == 64 * 2**30 and own_bytes >= BUDGET_BYTES
    filled = f"{board.device}; what may be filled is {BUDGET_BYTES / GB:g} x 10^9 bytes"
    counted = (
        "torch.optim.RMSprop with momentum, counted after a step; one step counter a tensor is "
        "left out"
    )
    as_printed, each_bytes = (
        side == 224 and minibatches == {128},
        accelerators.bytes_per_parameter(),
    )
    return [
        Finding.exact("gpipe-table1-setup", as_printed and all(cut)),
        Finding.simulated("gpipe-setup-tpu", eight, filled),
        Finding.exact("gpipe-bytes-per-param-12", each_bytes, counted),
    ]


def findings(table: Table1, picture: str) -> list[Finding]:
    """Return the four claims of each column of Table 1; the figure shows the accelerators."""
    cause = naive_cause(table)
    _, bfloat16 = convolution_gb(table["naive-1"])
    kept = {name: own.own_activation_gb for name, own in table.items()}
    compiled = kept | {"naive-1": bfloat16}
    step, compiled_step = smallest_step(kept), smallest_step(compiled)
    found = []
    for name, own in table.items():
        total, key = own.own_activation_gb, f"gpipe-table1-{name}"
        why = (
            "cut by GPipe's partitioner (least variance of FLOPs); with the best cut by memory "
            f"{own.best_gb:.2f} and {own.next_gb('memory'):.2f} GB: the paper's is between both"
        )
        if name == "pipeline-1":
            why = (
                "activations of one whole microbatch, with the inputs of all, are "
                f"{total:.2f} GB and not {own.activation_gb}: the compiler kept less"
            )
        elif name == "naive-1":
            why = cause
        fit = [float(own.held["total"].max()), own.next_gb()]
        size = f"next size {(own.layers, own.filters + STEP)}; {why}"
        each = own.parameter_gb * GB / own.counted
        paper = (
            f"{own.parameter_gb} GB (Table 1) are {each:.2f} bytes for each of "
            f"{own.counted / 1e6:.1f} million parameters, and 12 are stated (4.1)"
        )
        ratio = total / own.activation_gb
        order = f"{ratio:.2f} times the paper's; the order fails by Naive-1 only: {cause}"
        found += [
            Finding.simulated(f"{key}-config", fit, size)
            .because(GIBIBYTES, [gb * GB / 2**30 for gb in fit], changed="8 x 2^30, a TPU-v2's")
            .because(CUT, [own.best_gb, own.next_gb("memory")], changed="the best cut by memory"),
            Finding.exact(f"{key}-params", own.counted),
            Finding.exact(f"{key}-param-memory", 12 * own.counted / GB).contradicted(paper),
            Finding.simulated(f"{key}-activation-memory", [total, step], order, picture).because(
                COMPILER,
                [compiled[name], compiled_step],
                changed="Naive-1 keeps its convolutions' outputs alone, in bfloat16",
            ),
        ]
    return found


def smallest_step(activation_gb: Mapping[str, float]) -> float:
    """Return the smallest step through the columns in the paper's order of their activations."""
    ordered = ("pipeline-1", "naive-1", "pipeline-2", "pipeline-4", "pipeline-8")
    return min(b - a for a, b in pairwise(activation_gb[name] for name in ordered))
