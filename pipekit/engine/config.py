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
from pipekit.schedules.lowering.boundaries import START, Boundary, PossibleStops
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import Sum, Turn

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, target)`` of a microbatch, one number."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """What all workers of a run know of its table."""

    workers: int
    stage_workers: tuple[tuple[int, ...], ...]
    shared: bool  # whether any stage is on several workers
    busy: tuple[int, ...]  # workers with any stage
    links: frozenset[tuple[int, int]]  # (sender, receiver) of messages between stages
    sums: Sequence[Recurring[Sum]]  # of each stage, the terms of each update
    averages: bool  # whether any update sums microbatches of several batches
    sum_order: Recurring[Turn]  # (stage, update) of the sums over workers, in all workers' order
    moves: bool  # whether any op moves activations


@dataclass(frozen=True)
class CheckpointConfig:
    """How the workers of a run write checkpoints."""

    folder: Path  # of all checkpoints
    # Common to all parts; ``batches`` counts those before the run's table, ``attempt`` has
    # hexadecimal digits, new after each resumption.
    about: dict[str, Any]
    parts: int  # of a checkpoint
    boundaries: tuple[Boundary, ...]  # after which they are written, the last at the run's end
    keep: int  # complete checkpoints
    ends: tuple[Boundary, ...]  # where the run may end early


class Norm(NamedTuple):
    """A norm over gradients: of how many parameters, and its type."""

    parameters: int = 0
    dtype: torch.dtype = torch.float32


class Start(NamedTuple):
    """Where a run begins."""

    schedule: Schedule
    offset: int  # batches of the run before the table
    microbatches: int  # of the whole training before the table: keys of the random numbers
    begin: Boundary = START  # within the table
    checkpoint: Path | None = None  # that has what comes before that
    losses: Sequence[tuple[int, float]] = ()  # of the table's microbatches before that


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The configuration that all workers of a run share; it can be sent to another process."""

    table: RunTable
    loss: Loss
    updates: Updates = Updates()
    execution: Execution = Execution()
    watch: Watch = Watch()
    training: bool = True  # else inference, whose loss is any function
    first_microbatch: int = 0  # microbatches of earlier runs
    norm: Norm = field(default_factory=Norm)  # of all gradients, if stages agree on it
    loss_versions: Recurring[int] | None = None  # whose scale each update's losses have
    ties: tuple[Tie, ...] = ()
    checkpoints: CheckpointConfig | None = None
    begin: Boundary = START  # within the table
    resumed: Path | None = None  # the checkpoint that has what comes before that
    possible_stops: PossibleStops = field(default_factory=PossibleStops)
    batches: int = 0  # of a finite table; 0: it has no end
    end: int = sys.maxsize  # the microbatch after its last, of an endless table with known length

    @property
    def sharing(self) -> list[tuple[tuple[int, ...], bool]]:
        """The workers that share a stage, and (True) those with copies of tied weights."""
        stage_workers = self.table.stage_workers
        together = [(workers, False) for workers in stage_workers if len(workers) > 1]
        tied = [(tie.members(stage_workers), True) for tie in self.ties]
        return list(dict.fromkeys([*together, *tied]))
