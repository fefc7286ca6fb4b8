"""What all workers of a run have in common."""

from dataclasses import dataclass

import torch

from pipekit.clusters import Cluster
from pipekit.engine.checkpoints.writer import Resumption, Saving
from pipekit.engine.execution.passes import Loss
from pipekit.engine.updates.ties import Tie
from pipekit.schedules import Sum


@dataclass(frozen=True)
class Job:
    """What all workers of a run have in common.

    Attributes:
        workers: how many there are.
        members: the workers that have each stage.
        sums: what each update of each stage sums.
        loss: of the last stage's output and the target; a number a microbatch.
        mean_loss: whether the loss is a mean over rows, so that a batch's microbatches count by
            their rows, and the batches of an update alike.
        training: False for inference.
        first_microbatch: microbatches that earlier runs have seen.
        clip_norm: largest global norm of an update's gradient, or None.
        parameters: trained parameters of the whole model.
        norm_dtype: of the norm over them all.
        loss_versions: of which each update's losses have the scale, if they are scaled.
        ties: weights that stages share.
        autocast: what the loss is computed in, where that is safe, or None.
        trace: whether to record events.
        memory: whether to follow what lies in memory.
        cluster: links to slow the messages down to, or None.
        saving: how checkpoints are written, or None.
        resumption: where an interrupted run is taken up again, or None.
    """

    workers: int
    members: tuple[tuple[int, ...], ...]
    sums: tuple[tuple[Sum, ...], ...]
    loss: Loss
    mean_loss: bool
    training: bool
    first_microbatch: int
    clip_norm: float | None
    parameters: int
    norm_dtype: torch.dtype
    loss_versions: tuple[int, ...]
    ties: tuple[Tie, ...]
    autocast: torch.dtype | None
    trace: bool
    memory: bool = False
    cluster: Cluster | None = None
    saving: Saving | None = None
    resumption: Resumption | None = None

    @property
    def busy(self) -> list[int]:
        """The workers that have anything to do."""
        return sorted({worker for workers in self.members for worker in workers})

    @property
    def sharing(self) -> list[tuple[tuple[int, ...], bool]]:
        """The workers that have a stage together, and (True) those with copies of tied weights."""
        together = [(workers, False) for workers in self.members if len(workers) > 1]
        tied = [(tie.members(self.members), True) for tie in self.ties]
        return list(dict.fromkeys([*together, *tied]))
