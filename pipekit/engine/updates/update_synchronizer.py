"""What a worker's updates need of other workers: their gradients, and a common decision."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import torch

from pipekit.engine.config import Job
from pipekit.engine.execution.stage import Stage
from pipekit.engine.transports.transport import Links
from pipekit.engine.updates.buckets import Gradients
from pipekit.engine.updates.comm_thread import Lane
from pipekit.engine.updates.global_update import JointUpdates
from pipekit.engine.updates.reducer import Reducer
from pipekit.engine.updates.ties import Tie, TiedSum


class Settling:
    """A worker's part in it, in training.

    If stages on different workers have to agree, the first update of a version settles it for all
    stages of the worker, which wait for one another (see :func:`pipekit.schedules.check.check`,
    ``joint_updates``).

    Args:
        index: the worker.
        stages: that live there, by index; they get what sums their gradients.
        job: what is common to all workers.
        links: to the other workers.
        device: where the gradients lie.
    """

    def __init__(
        self,
        index: int,
        stages: Mapping[int, Stage],
        job: Job,
        links: Links,
        device: torch.device,
    ) -> None:
        self._index, self._stages, self._job = index, stages, job
        self._links, self._device = links, device
        self._lane: Lane | None = None
        for stage in stages.values():
            stage.reducer = self._reducer(stage)
        # In one order on all workers, so that they never wait for one another in a circle.
        self._ties = [
            self._tied_sum(number, tie)
            for number, tie in enumerate(job.ties)
            if not stages.keys().isdisjoint(tie.stages)
        ]
        self._joint = self._joint_updates()
        self._settled: dict[int, tuple[Gradients, bool]] = {}  # by stage, until its update

    @property
    def bytes(self) -> int:
        """Bytes of gradients that are being summed, or have been and wait for their update."""
        settled = chain.from_iterable(gradients for gradients, _ in self._settled.values())
        waiting = sum(gradient.nbytes for gradient in settled if gradient is not None)
        return waiting + sum(reducer.bytes for reducer in self._reducers)

    def gradients(self, stage: int, update: int) -> tuple[Gradients, bool]:
        """Return a stage's gradients for an update, and whether it is to be made."""
        if stage not in self._settled:
            self._settle(list(self._stages) if self._ties or self._joint else [stage], update)
        return self._settled.pop(stage)

    def close(self) -> Counter[int]:
        """Sum no more; return the bytes of gradients that were sent, by receiver."""
        for reducer in self._reducers:
            reducer.close()
        if self._lane:
            self._lane.close()
        sums: list[Reducer | TiedSum] = [*self._reducers, *self._ties]
        return sum((Counter(each.sent) for each in sums), Counter())

    @property
    def _reducers(self) -> list[Reducer]:
        return [stage.reducer for stage in self._stages.values() if stage.reducer]

    def _settle(self, stages: Sequence[int], update: int) -> None:
        """Get everything for some stages' updates."""
        sums = {}
        for index in stages:
            stage = self._stages[index]
            sums[index] = (stage.reducer or stage.versions).gradients(update)
        for tie in self._ties:
            tie.sum(sums, update)
        for index, gradients in sums.items():
            batches = self._job.sums[index][update - 1].batches
            if self._job.mean_loss and batches > 1:
                for gradient in gradients:
                    if gradient is not None:
                        gradient.div_(batches)
        made = self._joint is None or self._joint.settle([*chain(*sums.values())], update)
        self._settled.update({index: (gradients, made) for index, gradients in sums.items()})

    def _reducer(self, stage: Stage) -> Reducer | None:
        """Return what sums a stage's gradients, if other workers have it as well."""
        job, index, versions = self._job, stage.spec.index, stage.versions
        members = job.members[index]
        if len(members) == 1 or not versions.buckets():
            return None
        # One for all stages: see arguments.require_one_order_of_sums.
        self._lane = self._lane or Lane(f"pipekit lane {self._index}", self._device, job.workers)
        return Reducer(
            index,
            self._index,
            versions,
            job.sums[index],
            self._links.exchange(members),
            self._lane,
            self._device,
            first=1 + (job.resumption.boundary.versions[index] if job.resumption else 0),
        )

    def _tied_sum(self, number: int, tie: Tie) -> TiedSum:
        """Return what sums the gradients of weights that stages share, of which some are here."""
        members = self._job.members
        return TiedSum(
            number,
            tie,
            self._index,
            members,
            {index: stage.versions for index, stage in self._stages.items()},
            self._links.exchange(tie.members(members), tied=True),
            self._device,
        )

    def _joint_updates(self) -> JointUpdates | None:
        """Return what settles updates with all workers, if that is to be done."""
        job = self._job
        scalers = [stage.scaler for stage in self._stages.values() if stage.scaler]
        if job.clip_norm is None and not scalers:
            return None
        numbers: list[int | None] = []
        for index, stage in self._stages.items():
            own = stage.spec.numbers
            first = self._index == job.members[index][0]  # the others' gradients are the same
            numbers += own if first else [None] * len(own)
        return JointUpdates(
            job.clip_norm,
            scalers,
            job.parameters,
            numbers,
            job.norm_dtype,
            self._links,
            self._device,
        )
