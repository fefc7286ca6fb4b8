"""What a worker's updates need of other workers: their gradients, and a common decision."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import torch

from pipekit.devices import synchronize
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.transport import Transport
from pipekit.engine.updates.all_reduce import AllReduce, TiedGradients, average
from pipekit.engine.updates.global_update import GlobalUpdate
from pipekit.engine.updates.reducer import CommThread, Reducer, SumTurns
from pipekit.engine.updates.weights import Gradients
from pipekit.partition.ties import Tie


class UpdateSynchronizer:
    """Makes the updates of one worker's stages, with what they need of other workers.

    If stages on different workers have to agree, the first update of a version settles it for all
    stages of the worker, which wait for one another (see :func:`pipekit.schedules.check.check`,
    ``joint_updates``).
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, Stage],
        config: RunConfig,
        transport: Transport,
        device: torch.device,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._worker, self._stages, self._config = worker, stages, config
        self._transport, self._device = transport, device
        self._part_listeners = listeners(observers, Observer.part_sent, worker)
        self._comm_thread: CommThread | None = None
        self._turns = SumTurns(config.table.sum_order)
        self._reducers = {
            index: reducer
            for index, stage in stages.items()
            if (reducer := self._reducer(index, stage))
        }
        # In one order on all workers, so that they never wait for one another in a circle.
        self._ties = [
            self._tie(number, tie)
            for number, tie in enumerate(config.ties)
            if not stages.keys().isdisjoint(tie.stages)
        ]
        self._global_update = self._make_global_update(observers)
        self._settled: dict[int, tuple[Gradients, bool]] = {}  # by stage, until its update
        self._turns.begin(
            {index: reducer.submit for index, reducer in self._reducers.items()},
            {index: 1 + config.table.made[index] for index in self._reducers},
        )

    def waiting_bytes(self) -> int:
        """Return the bytes of gradients that are being summed, or wait for their update."""
        settled = chain.from_iterable(gradients for gradients, _ in self._settled.values())
        waiting = sum(gradient.nbytes for gradient in settled if gradient is not None)
        return waiting + sum(reducer.bytes for reducer in self._reducers.values())

    def begin_last(self, stage: int, update: int) -> None:
        """Expect the last pass here that adds to the gradients of a stage's update."""
        if stage in self._reducers:
            self._reducers[stage].begin(update)

    def end_last(self, stage: int, update: int) -> None:
        """Note that this pass is over: the gradients of the update are complete here."""
        if stage in self._reducers:
            self._reducers[stage].end(update)

    def settle(self, stage: int, update: int) -> None:
        """Wait until all that a stage's update needs is here, and until it is decided upon."""
        if stage not in self._settled:
            together = self._ties or self._global_update
            self._settle(list(self._stages) if together else [stage], update)

    def update(self, stage: int, slot: int) -> None:
        """Make a settled update: write the stage's next version into a weight slot."""
        gradients, made = self._settled.pop(stage)
        weights = self._stages[stage].weights
        if made:
            weights.update(slot, gradients)
        else:
            weights.skip(slot)

    def average_statistics(self) -> None:
        """Give norms of stages on several workers the same running statistics on all of them.

        It is the last thing that a run does; in the traffic it does not count.
        """
        for index, members in enumerate(self._config.table.stage_workers):
            if index not in self._stages or len(members) == 1:
                continue
            weights = self._stages[index].weights
            channel = self._transport.channel(members)
            all_reduce = AllReduce(members, self._worker, channel)
            work = partial(average, weights.modules[0], index, members, all_reduce)
            synchronize(self._device)  # of this thread, before that one begins, and the other way
            self._comm().submit(work).result()
            self._comm().submit(partial(synchronize, self._device)).result()

    def close(self) -> Counter[int]:
        """Sum no more; return the bytes of gradients that were sent, by receiver."""
        self._turns.end()
        for reducer in self._reducers.values():
            reducer.close()
        if self._comm_thread:
            self._comm_thread.close()
        sums: list[Reducer | TiedGradients] = [*self._reducers.values(), *self._ties]
        return sum((Counter(each.sent_bytes) for each in sums), Counter())

    def _settle(self, stages: Sequence[int], update: int) -> None:
        """Get everything for some stages' updates."""
        sums = {
            index: (self._reducers.get(index) or self._stages[index].weights).gradients(update)
            for index in stages
        }
        for tie in self._ties:
            tie.share(sums, update)
        for index, gradients in sums.items():
            batches = self._config.table.sums[index][update - 1].batches
            if self._config.mean_loss and batches > 1:
                for gradient in gradients:
                    if gradient is not None:
                        gradient.div_(batches)
        made = True
        if self._global_update:
            made = self._global_update.settle([*chain(*sums.values())], update)
        self._settled.update({index: (gradients, made) for index, gradients in sums.items()})

    def _all_reduce(self, members: Sequence[int], tied: bool = False) -> AllReduce:
        channel = self._transport.channel(members, tied)
        return AllReduce(members, self._worker, channel, self._part_listeners)

    def _reducer(self, index: int, stage: Stage) -> Reducer | None:
        """Return what sums a stage's gradients, if other workers have it as well."""
        config, members = self._config, self._config.table.stage_workers[index]
        if len(members) == 1 or not stage.weights.buckets():
            return None
        return Reducer(
            index,
            self._worker,
            stage.weights,
            config.table.sums[index],
            config.table.stops[index],
            self._all_reduce(members),
            self._comm(),
            self._device,
            self._turns.advance,
            1 + config.table.made[index],
        )

    def _comm(self) -> CommThread:
        """Return the thread in which the stages' sums take turns."""
        if not self._comm_thread:
            name = f"pipekit sums of worker {self._worker}"
            self._comm_thread = CommThread(name, self._device, self._config.table.workers)
        return self._comm_thread

    def _tie(self, number: int, tie: Tie) -> TiedGradients:
        """Return what shares the gradients of weights that stages share, of which some are here."""
        stage_workers = self._config.table.stage_workers
        return TiedGradients(
            number,
            tie,
            self._worker,
            stage_workers,
            {index: stage.weights for index, stage in self._stages.items()},
            self._all_reduce(tie.members(stage_workers), tied=True),
            self._device,
        )

    def _make_global_update(self, observers: Sequence[Observer]) -> GlobalUpdate | None:
        """Return what settles updates with all workers, if that is to be done."""
        config = self._config
        scalers = [stage.scaler for stage in self._stages.values() if stage.scaler]
        if config.updates.clip_norm is None and not scalers:
            return None
        numbers: list[int | None] = []
        for index, stage in self._stages.items():
            first = self._worker == config.table.stage_workers[index][0]  # the others' are the same
            numbers += stage.numbers if first else [None] * len(stage.numbers)
        return GlobalUpdate(
            config.updates.clip_norm,
            scalers,
            config.parameters,
            numbers,
            config.norm_dtype,
            self._transport,
            self._device,
            listeners(observers, Observer.values_summed, self._worker),
            listeners(observers, Observer.update_decided, self._worker),
        )
