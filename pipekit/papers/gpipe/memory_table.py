"""GPipe's Table 1 beside the memory model, at the paper's sizes (section 4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import pandas as pd
import torch

from pipekit.clusters import gpipe_tpu_v2
from pipekit.models import PUBLISHED
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe import memory
from pipekit.papers.gpipe.memory import COLUMNS, GB, Column, Cut
from pipekit.papers.gpipe.memory_search import next_size
from pipekit.papers.gpipe.scenarios import named
from pipekit.profiling import Profile


@dataclass(frozen=True)
class Simulated:
    """A column of Table 1 as printed, and as the memory model has it.

    Attributes:
        column: as printed.
    """

    column: Column

    @cached_property
    def network(self) -> Profile:
        """The bytes of the column's network."""
        return memory.amoebanet(self.column.layers, self.column.filters)

    @cached_property
    def held(self) -> pd.DataFrame:
        """What every accelerator holds, cut by GPipe's partitioner; see :func:`memory.held`."""
        return memory.held(self.network, self.column.scenario)

    @cached_property
    def best(self) -> pd.DataFrame:
        """The same with the best cut by memory."""
        return memory.held(self.network, self.column.scenario, "memory")

    @property
    def parameters(self) -> int:
        """The network's parameters, counted."""
        return round(self.network.parameter_bytes / 4)

    @property
    def activation_gb(self) -> float:
        """GB of activations on all accelerators."""
        return float(self.held["activations"].sum())

    @property
    def next_size(self) -> tuple[int, int]:
        """The next larger (L, F) of the paper's search."""
        return next_size(self.column.layers, self.column.filters)

    def next_gb(self, cut: Cut = "computation") -> float:
        """Return the GB of the fullest accelerator for the network of the next size."""
        return memory.fullest(memory.amoebanet(*self.next_size), self.column.scenario, cut)


Table1 = Mapping[str, Simulated]
"""By the column's name."""


def table1() -> Table1:
    """Return every column of Table 1."""
    return {name: Simulated(Column.of(name)) for name in COLUMNS}


def frame(table: Table1) -> pd.DataFrame:
    """Return Table 1, the paper's numbers beside ours: its columns are columns."""
    return pd.DataFrame(
        {
            name: {
                "(L, F)": f"({own.column.layers}, {own.column.filters})",
                "parameters (millions), paper": own.column.parameters / 1e6,
                "parameters (millions), exact": own.parameters / 1e6,
                "of parameters (GB), paper": own.column.parameter_gb,
                "of parameters (GB), exact": 12 * own.parameters / GB,
                "of activations (GB), paper": own.column.activation_gb,
                "of activations (GB), simulated": own.activation_gb,
                "mean accelerator (GB), paper": own.column.mean_gb,
                "fullest accelerator (GB), simulated": own.held["total"].max(),
                "the same, best cut by memory": own.best["total"].max(),
            }
            for name, own in table.items()
        }
    )


def accelerators(table: Table1) -> pd.DataFrame:
    """Return what each accelerator of each column holds, a row each."""
    held = {name: own.held for name, own in table.items()}
    return pd.concat(held, names=["column", "accelerator"]).reset_index()


def pipelined_ratios(table: Table1) -> list[float]:
    """Return, for each column with GPipe, our activations over the paper's."""
    return [
        own.activation_gb / own.column.activation_gb
        for own in table.values()
        if own.column.scenario.pipelined
    ]


def assumptions(table: Table1) -> pd.DataFrame:
    """Return the GB of activations by what may be assumed of them: a row a column of Table 1."""
    ways = {
        "float32": (4, False),
        "float32, gradients of parameters too": (4, True),
        "bfloat16": (2, False),
        "bfloat16, float32 gradients of parameters too": (2, True),
    }
    found = {"paper": {name: own.column.activation_gb for name, own in table.items()}}
    for way, (width, gradients) in ways.items():
        found[way] = {
            name: memory.held(
                memory.in_precision(own.network, width), own.column.scenario, gradients=gradients
            )["activations"].sum()
            for name, own in table.items()
        }
    return pd.DataFrame(found)


def naive_convolutions_gb(table: Table1) -> tuple[float, float]:
    """Return the GB of convolutions' outputs alone in Naive-1, in float32 and in bfloat16."""
    naive = table["naive-1"].column
    return memory.convolution_gb(naive, 4), memory.convolution_gb(naive, 2)


def naive_cause(table: Table1) -> str:
    """Return what the paper's Naive-1 must have done otherwise, in words."""
    float32, bfloat16 = naive_convolutions_gb(table)
    return (
        "eager PyTorch keeps every operator's operands, in float32; Naive-1's network has "
        f"{float32:.1f} GB of convolutions' outputs alone ({bfloat16:.1f} GB in bfloat16), so that "
        "the TPU's compiler must have kept less (fusion, recomputation)"
    )


def setup_findings() -> list[Finding]:
    """Return whether our set-up is the paper's: sizes, accelerators, bytes a parameter."""
    with torch.device("meta"):
        side = PUBLISHED["amoebanet-d-18-208"].sample(1).shape[-1]
    scenarios = [named(name) for name in COLUMNS]
    board = gpipe_tpu_v2()
    return [
        Finding.exact(
            "gpipe-table1-setup",
            side == 224
            and all(each.rows * each.microbatches == 128 for each in scenarios)
            and all(
                each.schedule().microbatches == (16 if each.pipelined else 1) for each in scenarios
            ),
        ),
        Finding.simulated(
            "gpipe-setup-tpu",
            board.workers == 8
            and board.workers * board.device.memory_bytes == 64 * 2**30
            and board.device.memory_bytes >= memory.BUDGET_BYTES,
            f"{board.device}; what may be filled is {memory.BUDGET_BYTES / GB:g} x 10^9 bytes",
        ),
        Finding.exact(
            "gpipe-bytes-per-param-12",
            memory.bytes_per_parameter(),
            "torch.optim.RMSprop with momentum, counted after a step; one step counter a tensor is "
            "left out",
        ),
    ]


def findings(table: Table1, figure: str) -> list[Finding]:
    """Return the four claims of each column of Table 1; the figure shows the accelerators."""
    cause = naive_cause(table)
    ordered = ("pipeline-1", "naive-1", "pipeline-2", "pipeline-4", "pipeline-8")
    step = min(b - a for a, b in pairwise(table[name].activation_gb for name in ordered))
    found = []
    for name, own in table.items():
        printed, total, key = own.column, own.activation_gb, f"gpipe-table1-{name}"
        why = (
            "cut by GPipe's partitioner (least variance of FLOPs); with the best cut by memory "
            f"{own.best['total'].max():.2f} and {own.next_gb('memory'):.2f} GB: the paper's is "
            "between both"
        )
        if name == "pipeline-1":
            why = (
                "activations of one whole microbatch, with the inputs of all, are "
                f"{total:.2f} GB and not {printed.activation_gb}: the compiler kept less"
            )
        elif name == "naive-1":
            why = cause
        fit = [float(own.held["total"].max()), own.next_gb()]
        each = printed.parameter_gb * GB / own.parameters
        ratio = total / printed.activation_gb
        found += [
            Finding.simulated(f"{key}-config", fit, f"next size {own.next_size}; {why}"),
            Finding.exact(f"{key}-params", own.parameters),
            Finding.exact(
                f"{key}-param-memory",
                12 * own.parameters / GB,
                f"the paper's {printed.parameter_gb} GB are {each:.2f} bytes a parameter",
            ),
            Finding.simulated(
                f"{key}-activation-memory",
                [total, step],
                f"{ratio:.2f} times the paper's; the order fails by Naive-1 only: {cause}",
                figure,
            ),
        ]
    return found
