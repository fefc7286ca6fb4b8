"""2BW, Flush and GPipe really trained beside their update equations (sections 3.1 to 3.3, 5.2)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import pandas as pd
import torch
from torch import nn

from pipekit import oracle, schedules
from pipekit.datasets import Batch
from pipekit.engine import OptimizerFactory, Pipeline
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.staleness.study import Study, largest_relative_difference
from pipekit.papers.pipedream_2bw.timelines import semantics
from pipekit.papers.pipedream_2bw.timelines.semantics import Compared
from pipekit.schedules import Schedule, ScheduleError

DEPTH = 4
"""Stages and microbatches of every training."""

BALANCE = [2] * DEPTH

LR = 0.1

OPTIMIZERS: Mapping[str, OptimizerFactory] = {
    "SGD": partial(torch.optim.SGD, lr=LR),
    "momentum": partial(semantics.Momentum, lr=LR, beta=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
}

MEGATRON_BATCH = 1024
"""Megatron's largest batch (section 5.2)."""

ROWS_OF_FIGURE_6 = 8
"""Sequences of a microbatch, b."""


class SmallNetwork:
    """A network of four stages in float32 and float64, with random batches of 32 rows."""

    def __init__(self, batches: int, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [x for _ in range(DEPTH) for x in (nn.Linear(16, 16), nn.Tanh())]
        self.single = nn.Sequential(*layers)
        self.data: Sequence[Batch] = [
            (torch.randn(32, 16), torch.randn(32, 16)) for _ in range(batches)
        ]
        self.double = copy.deepcopy(self.single).double()
        self.data64: Sequence[Batch] = [(x.double(), y.double()) for x, y in self.data]

    def compared(
        self,
        method: Callable[[int, int], Schedule],
        equation: str,
        optimizer: str = "SGD",
        *,
        precise: bool = False,
        width: int = 1,
        transport: str = "threads",
    ) -> Compared:
        """Train by a method on four stages and four microbatches, and by an equation."""
        return semantics.against_equation(
            self.double if precise else self.single,
            self.data64 if precise else self.data,
            method(DEPTH, DEPTH),
            equation,
            BALANCE,
            DEPTH,
            OPTIMIZERS[optimizer],
            width=width,
            transport=transport,
        )

    @cached_property
    def oracle_from_equation(self) -> dict[str, float]:
        """How far the oracle is from the equations written out by hand, on whole batches (float64).

        The largest relative difference over all W(t), by the oracle's name of the method; W(t+1) =
        W(t) - lr grad f(W(t - delay)), with neither engine nor oracle.
        """
        loss, found = nn.MSELoss(), {}
        for method, delay in (("sequential", 0), ("2bw", 1)):
            truth = oracle.train(
                self.double,
                self.data64,
                method=method,
                balance=BALANCE,
                optimizer=OPTIMIZERS["SGD"],
                loss=loss,
            )
            by_hand = Study(self.double, BALANCE, self.data64, loss, LR).replay([delay] * DEPTH)
            found[method] = largest_relative_difference(by_hand, truth.weights)
        return found

    def oracle_finding(self) -> Finding:
        """Return whether the oracle's sequential training is the equation by hand."""
        value = self.oracle_from_equation["sequential"] == 0
        return Finding.exact("2bw-eq-vanilla", value, "float64, whole batches, all W(t)")

    def equation_findings(self) -> list[Finding]:
        """Return how far 2BW's and the flushing methods' weights are from their equations."""
        single = self.compared(schedules.two_bw, "2bw")
        double = self.compared(schedules.two_bw, "2bw", precise=True)
        vanilla = [self.compared(m, "sequential") for m in (schedules.flush, schedules.gpipe)]
        passes = single.run.trace.frame.query("op != 'UPDATE'")
        first = passes[passes["microbatch"] < 2 * DEPTH]["version"]
        judge = (
            f"judge: pipekit.oracle, itself {self.oracle_from_equation['2bw']:g} from the "
            "equation by hand in float64; losses equal to the bit: "
            f"{single.losses_equal and double.losses_equal}; versions that the first two "
            f"batches read: {sorted(set(first))}"
        )
        ours = [single.difference, double.difference]
        flushing = max(each.difference for each in vanilla)
        return [
            Finding.exact("2bw-eq-update", ours, judge),
            Finding.exact("2bw-eq-flush-update", flushing, "Flush and GPipe, float32"),
        ]

    def with_optimizers(self, transports: Sequence[str]) -> "Optimized":
        """Train 2BW with each optimizer, on one pipeline and on two, over each transport."""
        trained = {
            (transport, name, width): self.compared(
                schedules.two_bw, "2bw", name, width=width, transport=transport
            )
            for transport in transports
            for name in OPTIMIZERS
            for width in (1, 2)
        }
        return Optimized(trained, rows=len(self.data[0][0]))

    def batch_findings(self, refuses_small_batches: bool) -> list[Finding]:
        """Return how large a batch is, by the microbatches that the engine makes of one."""
        printed = {(width, g): self._batch_as_printed(width, g) for width in (1, 2) for g in (1, 2)}
        refusal = self._refusal()
        refused = bool(refusal) and refuses_small_batches and printed[1, 1] and printed[2, 1]
        at_64, at_512 = ROWS_OF_FIGURE_6 * 64, ROWS_OF_FIGURE_6 * 512
        too_large = printed[2, 1] and at_64 <= MEGATRON_BATCH < at_512
        alone, both = printed[1, 1] and printed[1, 2], printed[2, 1] and printed[2, 2]
        counted = "b w d g: the microbatches that the engine really made of a batch"
        sizes = (
            f"b w d with b = {ROWS_OF_FIGURE_6}, g = 1: {at_64} on 64 workers, {at_512} on "
            f"512, where Megatron stays at {MEGATRON_BATCH}"
        )
        return [
            Finding.exact("2bw-batch-size-unreplicated", alone, "b m"),
            Finding.exact("2bw-batch-size-replicated", both, counted),
            Finding.exact("2bw-sec6-min-batch", refused, refusal),
            Finding.exact("2bw-sec52-accumulate-infeasible", too_large, sizes),
        ]

    def _batch_as_printed(self, width: int, g: int) -> bool:
        """Return whether a batch of b w d g rows makes w d g microbatches of b rows, b = 2."""
        b, count = 2, width * DEPTH * g
        batch = torch.randn(b * count, 16), torch.randn(b * count, 16)
        table = schedules.replicate(schedules.two_bw(DEPTH, DEPTH * g).take(1), width)
        rows = semantics.rows_of_microbatches(self.single, batch, table, BALANCE)
        return rows == [b] * count

    def _refusal(self) -> str:
        """Return what the engine says of fewer microbatches than stages; "" if nothing."""
        try:
            few = schedules.two_bw(DEPTH, DEPTH - 1)
            Pipeline(self.single, few, optimizer=OPTIMIZERS["SGD"], loss=nn.MSELoss())
        except ScheduleError as error:
            return str(error)
        return ""


class Optimized:
    """2BW trained with several optimizers, on one pipeline and on two, in batches of ``rows``."""

    def __init__(self, trained: Mapping[tuple[str, str, int], Compared], rows: int) -> None:
        self._trained, self._rows = trained, rows

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a training: the difference from the equation (exact), and bytes (measured)."""
        rows = []
        for (transport, name, width), found in self._trained.items():
            across, weights = semantics.crossing_bytes(found.run, width)
            rows.append(
                {
                    "transport": transport,
                    "optimizer": name,
                    "w": width,
                    "b": self._rows // (DEPTH * width),
                    "difference": found.difference,
                    "losses equal": found.losses_equal,
                    "weight slots": max(found.run.weight_slots),
                    "bytes between pipelines": across,
                    "gradients summed (bytes)": weights,
                }
            )
        return pd.DataFrame(rows)

    def findings(self) -> list[Finding]:
        """Return what momentum needs beside the weights, and what crosses pipelines."""
        where = next(iter(self._trained))[0]
        momentum, adam = (self._trained[where, name, 1].states for name in ("momentum", "Adam"))
        both = self.table[self.table["w"] == 2]
        names = ", ".join(dict.fromkeys(self.table["optimizer"]))
        states = (
            f"{len(self.table)} trainings with {names}, w = 1 and 2; state tensors of a "
            f"parameter: momentum {momentum:g}, Adam {adam:g}"
        )
        weights = int(both["gradients summed (bytes)"].min())
        summed = f"w = 2, {len(both)} trainings; gradients of weights: {weights:,} bytes"
        needed = [float(self.table["difference"].max()), momentum]
        crossed = int(both["bytes between pipelines"].max())
        return [
            Finding.exact("2bw-momentum-no-shadow", needed, states),
            Finding.exact("2bw-parallel-pipelines-no-cross", crossed, summed),
        ]
