"""The updates of a worker's stages, with what they need of other workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import torch

from pipekit.devices import synchronize
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import Transport
from pipekit.engine.updates.all_reduce import AllReduce, TiedGradients, average
from pipekit.engine.updates.global_update import GlobalUpdate
from pipekit.engine.updates.reducer import CommThread, Reducer, SharedStage
from pipekit.engine.updates.weights import Gradients
from pipekit.losses.checks import is_mean


class UpdateSynchronizer:
    """Makes the updates of one worker's stages, with what they need of other workers.

    If stages on different workers have to agree, the first update of a version settles it for all
    stages of the worker, which wait for one another.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, Stage],
        config: RunConfig,
        transport: Transport,
        device: torch.device,
        observer: Observer,
    ) -> None:
        self._worker, self._stages, self._config = worker, stages, config
        self._transport, self._device, self._observer = transport, device, observer
        self._stage_workers = config.table.stage_workers
        self._all_reduces: list[AllReduce] = []
        self.reducer: Reducer | None = None
        self.comm_thread: CommThread | None = None  # beside a worker that shares a stage
        if config.table.stops and any(len(self._stage_workers[index]) > 1 for index in stages):
            name = f"pipekit sums of worker {worker}"
            self.comm_thread = CommThread(name, device, config.table.workers)
            self.reducer = self._make_reducer(self.comm_thread)
        self._ties = self._make_ties() if config.ties else []
        self._global_update: GlobalUpdate | None = None
        if config.updates.clip_norm is not None or config.updates.scale:
            scalers = [stage.scaler for stage in stages.values() if stage.scaler]
            numbers: list[int | None] = []
            for index, stage in stages.items():
                first = worker == self._stage_workers[index][0]  # the others' are the same
                numbers += stage.numbers if first else [None] * len(stage.numbers)
            self._global_update = GlobalUpdate(
                config.updates.clip_norm,
                scalers,
                config.norm,
                numbers,
                transport,
                device,
                worker,
                observer,
            )
        self._averages = config.table.averages and is_mean(config.loss)
        self._settled: dict[int, tuple[Gradients, bool]] = {}  # by stage, until its update

    def waiting_bytes(self) -> int:
        """Return the bytes of gradients that are being summed, or wait for their update."""
        settled = chain.from_iterable(gradients for gradients, _ in self._settled.values())
        waiting = sum(gradient.nbytes for gradient in settled if gradient is not None)
        return waiting + (self.reducer.bytes if self.reducer else 0)

    def settle(self, stage: int, update: int) -> None:
        """Wait until all that a stage's update needs is here, and until it is decided upon."""
        if stage in self._settled:
            return
        together = self._ties or self._global_update
        sums: dict[int, Gradients] = {}
        for index in self._stages if together else [stage]:
            if self.reducer and index in self.reducer:
                sums[index] = self.reducer.gradients(index, update)
            else:
                sums[index] = self._stages[index].weights.gradients(update)
        for tie in self._ties:
            tie.share(sums, update)
        for index, gradients in sums.items() if self._averages else ():
            batches = self._config.table.sums[index][update - 1].batches
            for gradient in gradients if batches > 1 else ():
                if gradient is not None:
                    gradient.div_(batches)
        made = True
        if self._global_update:
            made = self._global_update.settle([*chain(*sums.values())], update)
        for index, gradients in sums.items():
            self._settled[index] = gradients, made

    def update(self, stage: int, slot: int) -> None:
        """Make a settled update: write the stage's next version into a weight slot."""
        gradients, made = self._settled.pop(stage)
        weights = self._stages[stage].weights
        if made:
            weights.update(slot, gradients)
        else:
            weights.skip(slot)

    def sent_bytes(self) -> Counter[tuple[int, str]]:
        """Return the bytes of gradients that were sent, by receiver and purpose."""
        found: Counter[tuple[int, str]] = Counter()
        for each in self._all_reduces:
            for receiver, size in each.sent_bytes.items():
                found[receiver, "weights"] += size
        return found

    def average_statistics(self) -> None:
        """Give norms of replicas the same running statistics, at the end, beside the traffic."""
        assert self.comm_thread
        for index, stage in sorted(self._stages.items()):
            members = self._stage_workers[index]
            if len(members) == 1:
                continue
            all_reduce = AllReduce(members, self._worker, self._transport.exchange_among(members))
            work = partial(average, stage.weights.modules[0], index, members, all_reduce)
            synchronize(self._device)  # of this thread, before that one begins, and the other way
            self.comm_thread.submit(work).result()
            self.comm_thread.submit(partial(synchronize, self._device)).result()

    def close(self) -> None:
        if self.reducer:
            self.reducer.close()
        if self.comm_thread:
            self.comm_thread.close()

    def _make_reducer(self, comm_thread: CommThread) -> Reducer | None:
        table, stages = self._config.table, {}
        for index, stage in self._stages.items():
            members, weights = self._stage_workers[index], stage.weights
            if len(members) > 1 and weights.buckets():
                about = weights, table.sums[index], table.stops[index], self._all_reduce(members)
                stages[index] = SharedStage(*about)
        if not stages:
            return None
        order = ((s, u) for s, u in table.sum_order if s in stages and u > table.made[s])
        return Reducer(self._worker, stages, order, comm_thread, self._device)

    def _all_reduce(self, members: Sequence[int], tied: bool = False) -> AllReduce:
        """Return what sums gradients over some workers, whose bytes count in the traffic."""
        exchange = self._transport.exchange_among(members, tied)
        self._all_reduces.append(AllReduce(members, self._worker, exchange, self._observer))
        return self._all_reduces[-1]

    def _make_ties(self) -> list[TiedGradients]:
        """Return what shares tied weights' gradients, in one order on all workers."""
        weights = {index: stage.weights for index, stage in self._stages.items()}
        found = []
        for number, tie in enumerate(self._config.ties):
            if weights.keys().isdisjoint(tie.stages):
                continue
            all_reduce = self._all_reduce(tie.members(self._stage_workers), tied=True)
            about = number, tie, self._worker, self._stage_workers, weights, all_reduce
            found.append(TiedGradients(*about, self._device))
        return found
