"""The systems of Figure 6 as schedules, and how many microbatches their memory admits (5.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from types import MappingProxyType

import numpy as np

from experiments.pipedream_2bw.settings import OPTIMIZER_STATES, WEIGHT_BYTES
from experiments.study.costs import recomputed_late
from experiments.study.search import largest_that_fits
from pipekit.clusters import Cluster
from pipekit.planning.layer_ranges import Floats, LayerRanges
from pipekit.planning.sweep import block_balance
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Task, flush, gpipe, replicate, two_bw
from pipekit.schedules.methods.flushed import require_positive

TENSOR_MP, INTER_LAYER, GPIPE, FLUSH, TWO_BW = SYSTEMS = (
    "tensor MP",
    "inter-layer MP",
    "GPipe",
    "PipeDream-Flush",
    "PipeDream-2BW",
)

LOSS_BYTES = 4
"""Of a logit: the loss is computed in float32 and saves its log-probabilities."""


def in_flushes(stages: int, sizes: Sequence[int]) -> Schedule:
    """Return GPipe's schedule with several flushes a batch, of so many microbatches each.

    The gradients of all of them make one update. A flush of 1 each is inter-layer model parallelism
    with gradient accumulation. A count below 1 is a ScheduleError.
    """
    require_positive(stages=stages, flushes=len(sizes), microbatches=min(sizes))
    last = sum(sizes) - 1

    def worker(stage: int) -> list[Task]:
        tasks = []
        for stop, size in zip(accumulate(sizes), sizes, strict=True):
            part = range(stop - size, stop)
            tasks += [Task(op, stage, k, 0) for op in (Op.FORWARD, Op.BACKWARD) for k in part]
        return [*tasks, Task(Op.UPDATE, stage, last, 1)]

    name = INTER_LAYER if max(sizes) == 1 else GPIPE
    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), name).repeat()


TABLES: Mapping[str, Callable[[int, int], Schedule]] = MappingProxyType(
    {
        INTER_LAYER: lambda depth, microbatches: in_flushes(depth, [1] * microbatches),
        FLUSH: flush,
        TWO_BW: two_bw,
        GPIPE: gpipe,
    }
)
"""The pipelined systems, each from depth and microbatches to its schedule; in the order of section
5.3, from the least memory to the most.  GPipe has a single flush a batch."""


@dataclass(frozen=True)
class Pipelines:
    """A model on parallel pipelines: what a bar of Figure 6 runs.

    ``profile`` is of one microbatch; ``depth`` counts stages, d, also the ways of tensor model
    parallelism, ``width`` pipelines, w, also its data-parallel copies, and ``microbatches`` those
    of one pipeline in a batch, m.
    """

    profile: Profile
    cluster: Cluster
    depth: int
    width: int
    microbatches: int

    @property
    def batch(self) -> int:
        """Sequences of a global batch: b w m."""
        return self.profile.rows * self.width * self.microbatches

    @property
    def balance(self) -> list[int]:
        """Layers of each stage: equal numbers of blocks (section 3.3)."""
        return block_balance(self.profile, self.depth)

    @property
    def plan(self) -> Plan:
        """The stages as simulator and emulator take them; :meth:`timed` has the recomputation."""
        return Plan.by_hand(
            self.balance, rows=self.profile.rows, replicas=[self.width] * self.depth
        )

    @property
    def timed(self) -> Profile:
        """The costs of microbatches that are recomputed when their backward begins.

        Section 4.1: "recomputed when required by rerunning the forward pass".
        """
        return recomputed_late(self.profile)

    @property
    def slowest_s(self) -> float:
        """The seconds that the slowest stage computes for a microbatch, recomputation included."""
        stages = (self.timed.stage(stage.first, stage.stop) for stage in self.plan.stages)
        return max(stage.forward_s + stage.backward_s for stage in stages)

    def schedule(self, system: str, batches: int) -> Schedule:
        """Return the table of one of the pipelined systems, or of inter-layer model parallelism."""
        if system == GPIPE:
            schedule = in_flushes(self.depth, self.flushes())
        else:
            schedule = TABLES[system](self.depth, self.microbatches)
        table = schedule.take(batches)
        return table if self.width == 1 else replicate(table, self.width)

    def flushes(self) -> list[int]:
        """Return the microbatches of each of GPipe's flushes: as few flushes as fit, as equal."""
        count = ceil(self.microbatches / min(self.microbatches, self.admitted()))
        parts = np.array_split(np.arange(self.microbatches), count)
        return [len(part) for part in parts]

    def admitted(self, keeps_loss: bool = True) -> int:
        """Return how many microbatches GPipe's memory admits before the first goes backward."""

        def fits(microbatches: int) -> bool:
            needed = self.bytes_of([microbatches] * self.depth, 1, keeps_loss).max()
            return bool(needed <= self.cluster.device.memory_bytes)

        return max(1, largest_that_fits(fits, self.microbatches))

    def bytes_of(
        self,
        in_flight: Sequence[int],
        versions: int | Sequence[int],
        keeps_loss: bool,
        recompute: bool = True,
    ) -> Floats:
        """Return the bytes on a worker of each stage (section 3.1).

        Microbatches ``in_flight`` have been forward and not yet backward. If the loss is kept, a
        microbatch on the last stage keeps its logits, and the loss its log-probabilities, until its
        backward, as a loss that is no part of the recomputed stage does; else only one microbatch
        at a time has them. Everything is recomputed, or nothing.
        """
        stop = np.cumsum(self.balance)
        first = stop - self.balance
        spans, counts = LayerRanges(self.profile), np.asarray(in_flight)
        total = spans.worker_bytes(
            first,
            stop,
            versions=np.asarray(versions),
            optimizer_states=OPTIMIZER_STATES,
            in_flight=counts,
            kept=1 if recompute else counts,
            gradients=spans.parameter_bytes(first, stop),
        )
        logits = self.profile.layers[-1].output_bytes
        losses = counts[-1] if keeps_loss or not recompute else 1
        total[-1] += losses * LOSS_BYTES / WEIGHT_BYTES * logits
        if recompute:
            total[-1] += (losses - 1) * logits
        return total
