"""The configuration that all workers of a run share."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.engine.options import Execution, Updates, Watch
from pipekit.partition.partition import Tie
from pipekit.schedules import Schedule
from pipekit.schedules.lowering.boundaries import Boundary, PossibleStops
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import Sum, Turn

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, target)`` of a microbatch, one number."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """What all workers of a run know of its table.

    Attributes:
        workers: their number.
        stage_workers: the workers of each stage.
        busy: those with any stage.
        links: pairs of workers of which the first sends the second messages between stages.
        sums: the terms of each update of each stage.
        averages: whether any update sums microbatches of several batches.
        stops: for each stage, the microbatch after the last one of each update; empty if no stage
            is on several workers.
        sum_order: (stage, update) of the sums over several workers, in the order of all workers.
        made: updates of each stage in the table before the run.
        moves: whether any op moves activations away, or back.
    """

    workers: int
    stage_workers: tuple[tuple[int, ...], ...]
    busy: tuple[int, ...]
    links: frozenset[tuple[int, int]]
    sums: Sequence[Recurring[Sum]]
    averages: bool
    stops: Sequence[Recurring[int]]
    sum_order: Recurring[Turn]
    made: tuple[int, ...]
    moves: bool


@dataclass(frozen=True)
class CheckpointConfig:
    """How the workers of a run write checkpoints.

    Attributes:
        folder: of all checkpoints.
        about: common to all parts; ``batches`` counts those before the run's table, ``attempt`` has
            hexadecimal digits, new after each resumption.
        parts: the number of parts of a checkpoint.
        boundaries: after which they are written, the last at the end of the run.
        keep: how many complete ones stay.
        ends: where the run may end early.
    """

    folder: Path
    about: dict[str, Any]
    parts: int
    boundaries: tuple[Boundary, ...]
    keep: int
    ends: tuple[Boundary, ...]


@dataclass(frozen=True)
class ResumeConfig:
    """Where an interrupted run continues: a checkpoint's folder, and its boundary."""

    checkpoint: Path
    boundary: Boundary


class Norm(NamedTuple):
    """A norm over gradients: of how many parameters, and its type."""

    parameters: int = 0
    dtype: torch.dtype = torch.float32


class Start(NamedTuple):
    """Where a run begins.

    Attributes:
        schedule: its table.
        offset: batches of the run that come before the table.
        microbatches: of the whole training before the table: keys of the random numbers.
        resume: within the table, or None: at its beginning.
        losses: of the microbatches before that, if they are the table's.
    """

    schedule: Schedule
    offset: int
    microbatches: int
    resume: ResumeConfig | None = None
    losses: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The configuration that all workers of a run share; it can be sent to another process.

    Attributes:
        training: False for inference, whose loss is any function.
        first_microbatch: microbatches of earlier runs.
        norm: that over the gradients of the whole model, if stages agree on it.
        loss_versions: the version whose scale each update's losses have, if they are scaled.
        batches: of a finite table; 0: it has no end.
        end: the microbatch after its last one, if the table is endless and the length known.
    """

    table: RunTable
    loss: Loss
    updates: Updates = field(default_factory=Updates)
    execution: Execution = field(default_factory=Execution)
    watch: Watch = field(default_factory=Watch)
    training: bool = True
    first_microbatch: int = 0
    norm: Norm = field(default_factory=Norm)
    loss_versions: Recurring[int] | None = None
    ties: tuple[Tie, ...] = ()
    checkpoints: CheckpointConfig | None = None
    resume: ResumeConfig | None = None
    possible_stops: PossibleStops = field(default_factory=PossibleStops)
    batches: int = 0
    end: int = sys.maxsize

    @property
    def sharing(self) -> list[tuple[tuple[int, ...], bool]]:
        """The workers that share a stage, and (True) those with copies of tied weights."""
        stage_workers = self.table.stage_workers
        together = [(workers, False) for workers in stage_workers if len(workers) > 1]
        tied = [(tie.members(stage_workers), True) for tie in self.ties]
        return list(dict.fromkeys([*together, *tied]))
