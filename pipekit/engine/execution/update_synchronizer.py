"""The updates of a worker's stages, with what they need of other workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import torch

from pipekit.engine.config import RunConfig
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer, listeners
from pipekit.engine.transport import Transport
from pipekit.engine.updates.all_reduce import AllReduce, TiedGradients
from pipekit.engine.updates.global_update import GlobalUpdate
from pipekit.engine.updates.reducer import Reducer
from pipekit.engine.updates.shared_stages import SharedStages
from pipekit.engine.updates.weights import Gradients


class UpdateSynchronizer:
    """Makes the updates of one worker's stages, with what they need of other workers.

    If stages on different workers have to agree, the first update of a version settles it for all
    stages of the worker, which wait for one another (see :func:`pipekit.schedules.check.check`,
    ``joint_updates``).

    Args:
        worker: its number.
        stages: its stages, by index.
        config: of the run.
        transport: to the other workers.
        device: the worker's.
        shared: what sums gradients with the other workers of these stages, or None.
        observers: hear of parts of sums, and of decisions.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, Stage],
        config: RunConfig,
        transport: Transport,
        device: torch.device,
        shared: SharedStages | None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._worker, self._stages, self._config = worker, stages, config
        self._transport, self._device, self._observers = transport, device, observers
        self._reducers = shared.reducers if shared else {}
        self._ties = self._make_ties() if config.ties else []
        self._global_update = self._make_global_update()
        self._settled: dict[int, tuple[Gradients, bool]] = {}  # by stage, until its update

    def waiting_bytes(self) -> int:
        """Return the bytes of gradients that are being summed, or wait for their update."""
        settled = chain.from_iterable(gradients for gradients, _ in self._settled.values())
        waiting = sum(gradient.nbytes for gradient in settled if gradient is not None)
        return waiting + sum(reducer.bytes for reducer in self._reducers.values())

    def settle(self, stage: int, update: int) -> None:
        """Wait until all that a stage's update needs is here, and until it is decided upon."""
        if stage in self._settled:
            return
        together = self._ties or self._global_update
        sums: dict[int, Gradients] = {}
        for index in self._stages if together else [stage]:
            source = self._reducers.get(index) or self._stages[index].weights
            sums[index] = source.gradients(update)
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
        sums: list[Reducer | TiedGradients] = [*self._reducers.values(), *self._ties]
        for each in sums:
            for receiver, size in each.sent_bytes.items():
                found[receiver, "weights"] += size
        return found

    def _make_ties(self) -> list[TiedGradients]:
        """Return what shares the gradients of weights that stages share, of which some are here.

        In one order on all workers, so that they never wait for one another in a circle.
        """
        stage_workers = self._config.table.stage_workers
        weights = {index: stage.weights for index, stage in self._stages.items()}
        tell = listeners(self._observers, Observer.part_sent, self._worker)
        found = []
        for number, tie in enumerate(self._config.ties):
            if weights.keys().isdisjoint(tie.stages):
                continue
            members = tie.members(stage_workers)
            channel = self._transport.channel(members, tied=True)
            all_reduce = AllReduce(members, self._worker, channel, tell)
            about = number, tie, self._worker, stage_workers, weights, all_reduce, self._device
            found.append(TiedGradients(*about))
        return found

    def _make_global_update(self) -> GlobalUpdate | None:
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
            listeners(self._observers, Observer.values_summed, self._worker),
            listeners(self._observers, Observer.update_decided, self._worker),
        )
