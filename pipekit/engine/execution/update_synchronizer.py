"""The updates of a worker's stages, with what they need of other workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from pipekit.devices import CPU, synchronize
from pipekit.engine.comm_thread import CommThread
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import Transport
from pipekit.engine.updates.all_reduce import AllReduce, TiedGradients, average
from pipekit.engine.updates.loss_scaler import LossScaler
from pipekit.engine.updates.reducer import Reducer, SharedStage
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
        if config.table.shared and any(len(self._stage_workers[index]) > 1 for index in stages):
            name = f"pipekit sums of worker {worker}"
            self.comm_thread = CommThread(name, device, config.table.workers)
            self.reducer = self._make_reducer(self.comm_thread)
        self._ties: list[TiedGradients] = []  # in one order on all workers
        for number, tie in enumerate(config.ties):
            if not stages.keys().isdisjoint(tie.stages):
                weights = {index: stage.weights for index, stage in stages.items()}
                all_reduce = self._all_reduce(tie.members(self._stage_workers), tied=True)
                about = number, tie, worker, self._stage_workers, weights, all_reduce
                self._ties.append(TiedGradients(*about, device))
        self._clip_norm = config.updates.clip_norm
        self._scalers: list[LossScaler] = []
        # Of all trained parameters here, in the model; None: another worker gives its norm.
        self._numbers: list[int | None] = []
        for index, stage in stages.items():
            self._scalers += [stage.scaler] if stage.scaler else []
            first = worker == self._stage_workers[index][0]  # the others' are the same
            self._numbers += stage.numbers if first else [None] * len(stage.numbers)
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
        decided = self._clip_norm is not None or bool(self._config.updates.scale)
        sums: dict[int, Gradients] = {}
        for index in self._stages if self._ties or decided else [stage]:
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
        made = not decided or self._decide([*chain(*sums.values())], update)
        for index, gradients in sums.items():
            self._settled[index] = gradients, made

    def _decide(self, gradients: Gradients, update: int) -> bool:
        """Undo the loss scale and clip by what all workers give; return whether to update.

        That is the norm of each parameter's gradient, if these are clipped, and then a 1 if losses
        are scaled and any gradient is not finite: then the update is not made.
        """
        parameters, dtype = self._config.norm
        count = 0 if self._clip_norm is None else parameters
        values = torch.zeros(count + 1, dtype=dtype, device=self._device)
        present = torch.zeros(count, dtype=torch.uint8, device=CPU)
        found = [gradient for gradient in gradients if gradient is not None]
        if self._scalers:
            inverse = 1 / self._scalers[0].scale(update)
            for gradient in found:
                gradient.mul_(inverse)
            if found:
                values[-1] = ~torch.stack([_held(g).isfinite().all() for g in found]).all()
        if self._clip_norm is not None:
            for number, one in zip(self._numbers, gradients, strict=True):
                if number is not None and one is not None:
                    values[number], present[number] = torch.linalg.vector_norm(_held(one)), 1
        self._observer.values_summed(self._worker, update, values)
        # The host knows which gradients there are, and sends it without waiting for the norms.
        given = [values] if self._clip_norm is None else [values, present]
        values, *told = self._transport.all_reduce(given, update)
        made = not self._scalers or values[-1].item() == 0  # for which an accelerator is waited
        for scaler in self._scalers:
            scaler.note(update, made)
        norm = None
        if made and self._clip_norm is not None:
            norms, (present,) = values[:-1], told
            if not present.all():  # the unsplit model sums no others
                norms = norms[present.nonzero().flatten().to(norms.device)]
            norm = torch.linalg.vector_norm(norms)
            factor = torch.clamp(self._clip_norm / (norm + 1e-6), max=1.0)
            for gradient in found:
                gradient.mul_(factor.to(gradient.dtype))
        self._observer.update_decided(self._worker, update, norm)
        return made

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
            members, used = self._stage_workers[index], set[int]()
            if len(members) == 1:
                continue
            for summed in self._config.table.sums[index]:
                if summed.end > self._transport.stop_point() or len(used) == len(members):
                    break
                used.update(summed.contributors)
            all_reduce = AllReduce(members, self._worker, self._transport.exchange_among(members))
            work = partial(average, stage.weights.modules[0], index, sorted(used), all_reduce)
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
                stages[index] = SharedStage(weights, table.sums[index], self._all_reduce(members))
        if not stages:
            return None
        made = dict(enumerate(self._config.begin.versions))
        order = ((s, u) for s, u in table.sum_order if u > made.get(s, 0))
        return Reducer(self._worker, stages, order, comm_thread, self._device)

    def _all_reduce(self, members: Sequence[int], tied: bool = False) -> AllReduce:
        """Return what sums gradients over some workers, whose bytes count in the traffic."""
        exchange = self._transport.exchange_among(members, tied)
        self._all_reduces.append(AllReduce(members, self._worker, exchange, self._observer))
        return self._all_reduces[-1]


def _held(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
