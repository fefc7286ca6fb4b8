"""What a worker does beside the other workers of its stages: sums of gradients, and statistics."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from pipekit.devices import synchronize
from pipekit.engine.config import RunConfig
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.transport import Transport
from pipekit.engine.updates.all_reduce import AllReduce, average
from pipekit.engine.updates.reducer import CommThread, Reducer, SumTurns
from pipekit.engine.updates.weight_versions import WeightVersions


class SharedStages:
    """A worker's stages that other workers have as well, who sum their gradients together.

    Attributes:
        reducers: what sums the gradients of a stage, by its index; a stage without trained
            parameters has none.
    """

    def __init__(
        self,
        worker: int,
        weights: Mapping[int, WeightVersions],
        config: RunConfig,
        transport: Transport,
        device: torch.device,
        observers: Sequence[Observer],
    ) -> None:
        self._worker, self._weights, self._device = worker, weights, device
        self._stage_workers, self._transport = config.table.stage_workers, transport
        name = f"pipekit sums of worker {worker}"
        self._comm_thread = CommThread(name, device, config.table.workers)
        self._turns = SumTurns(config.table.sum_order)
        tell = listeners(observers, Observer.part_sent, worker)
        self.reducers = {
            index: Reducer(
                index,
                worker,
                each,
                config.table.sums[index],
                config.table.stops[index],
                AllReduce(members, worker, transport.channel(members), tell),
                self._comm_thread,
                device,
                self._turns.advance,
                1 + config.table.made[index],
            )
            for index, each in weights.items()
            if len(members := self._stage_workers[index]) > 1 and each.buckets()
        }
        self._turns.begin(
            {index: reducer.submit for index, reducer in self.reducers.items()},
            {index: 1 + config.table.made[index] for index in self.reducers},
        )

    def begin_last(self, stage: int, update: int) -> None:
        """Expect the last pass here that adds to the gradients of a stage's update."""
        if stage in self.reducers:
            self.reducers[stage].begin(update)

    def end_last(self, stage: int, update: int) -> None:
        """Note that this pass is over: the gradients of the update are complete here."""
        if stage in self.reducers:
            self.reducers[stage].end(update)

    def average_statistics(self) -> None:
        """Give norms of stages on several workers the same running statistics on all of them.

        It is the last thing that a run does; in the traffic it does not count.
        """
        for index, weights in sorted(self._weights.items()):
            members = self._stage_workers[index]
            if len(members) == 1:
                continue
            all_reduce = AllReduce(members, self._worker, self._transport.channel(members))
            work = partial(average, weights.modules[0], index, members, all_reduce)
            synchronize(self._device)  # of this thread, before that one begins, and the other way
            self._comm_thread.submit(work).result()
            self._comm_thread.submit(partial(synchronize, self._device)).result()

    def close(self) -> None:
        """Sum no more."""
        self._turns.end()
        for reducer in self.reducers.values():
            reducer.close()
        self._comm_thread.close()
