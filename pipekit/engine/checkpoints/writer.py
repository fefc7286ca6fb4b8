"""Writes one worker's part of each checkpoint.

Nobody coordinates anything: the table tells every worker where a batch boundary lies in its own
list (PipeDream, section 4: each stage locally decides to dump its parameters).  At a boundary the
pipeline is full as ever.  A part therefore holds, besides the newest weights, the older versions
that the table lets later microbatches read, and running statistics of the moment when they had
counted the batches before the boundary and no other.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.config import CheckpointConfig
from pipekit.engine.ending import Ending
from pipekit.engine.execution.stage import Stage
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.layers.buffers import named_buffers
from pipekit.partition.recording.stage import extra_states
from pipekit.schedules import Op, Step, Task
from pipekit.schedules.lowering.boundaries import Boundary, older_versions
from pipekit.trees import differentiable

Losses = list[tuple[int, Tensor]]
Tensors = dict[str, Tensor]


class _Counted(NamedTuple):
    """Copies of what forwards change: buffers, and what modules keep beside tensors, by name."""

    buffers: Tensors
    extra_states: dict[str, Any]

    @classmethod
    def of(cls, layers: nn.Module) -> Self:
        return cls(_copies(named_buffers(layers)), extra_states(layers))


class CheckpointWriter(Observer):
    """Writes the parts of all stages of one worker, at every boundary.

    Args:
        stages: those that live there, ready for the run.
        steps: what the worker will do.
        losses: of (microbatch, loss), which the run adds to.
        config: how checkpoints are written.
        done: the boundary after which the run is taken up, or None: at its beginning.
        ending: where the run ends, if that is before the end of its table.
        failed: returns whether this worker has failed in a forward, so that its running statistics
            are those of no boundary.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        steps: Sequence[Step],
        losses: Losses,
        config: CheckpointConfig,
        done: Boundary | None,
        ending: Ending,
        failed: Callable[[], bool],
    ) -> None:
        self._stages, self._losses, self._config, self._done = stages, losses, config, done
        self._ending, self._failed, self._steps = ending, failed, steps
        self._tasks = [step.task for step in steps]
        self._parts: dict[int, _PartWriter] = {}

    def begin(self, worker: WorkerView) -> None:
        """Keep what the first checkpoint will need of the beginning."""
        self._parts = {
            number: _PartWriter(
                stage, number, self._config, worker.number, self._tasks, self._losses, self._done
            )
            for number, stage in self._stages.items()
        }

    def before_step(self, worker: int, step: Step) -> None:
        """Before a forward, keep running statistics that have counted all before a boundary."""
        if step.task.op is Op.FORWARD:
            self._parts[step.task.stage].before_forward(step.task.microbatch)

    def after_step(self, worker: int, step: Step) -> None:
        """After an update, write the part if this is a boundary."""
        if step.task.op is Op.UPDATE:
            self._parts[step.task.stage].after_update(step.task.version)

    def end(self, worker: int) -> None:
        """Write the last parts, at the end of the run.

        For :meth:`Pipeline.resume`, a run that ends early is one that was interrupted there.
        """
        for part in self._parts.values():
            if not self._failed():
                part.end(self._ending.microbatch, self._steps)


class _PartWriter:
    """What is set aside of a stage until its part of a checkpoint can be written."""

    def __init__(
        self,
        stage: Stage,
        index: int,
        config: CheckpointConfig,
        worker: int,
        tasks: Sequence[Task],
        losses: Losses,
        done: Boundary | None,
    ) -> None:
        self._stage, self._index, self._config = stage, index, config
        self._worker, self._losses, self._tasks = worker, losses, tasks
        self._written = done.microbatches if done else 0
        after = done.microbatches if done else 0
        self._pending = deque(b for b in config.boundaries if b.microbatches > after)
        older = [read[index] for read in older_versions(tasks, self._pending)]
        self._older = deque(older)
        self._readers = Counter(chain.from_iterable(older))  # boundaries, by version
        self._weights: dict[int, Tensors] = {}  # by version
        self._counted: deque[_Counted] = deque()  # of the first of the pending boundaries
        self._keep(0)

    def before_forward(self, microbatch: int) -> None:
        """Keep running statistics that have just counted all batches before a boundary."""
        now: _Counted | None = None
        for boundary in islice(self._pending, len(self._counted), None):
            if boundary.microbatches > microbatch:
                break
            now = now or _Counted.of(self._stage.weights.newest)
            self._counted.append(now)

    def after_update(self, version: int) -> None:
        """Keep weights that will be read again after a boundary; write if this is one."""
        self._keep(version)
        boundary = self._pending[0]
        if version == boundary.versions[self._index] and len(self._pending) > 1:
            self._write(boundary)

    def end(self, microbatch: int, steps: Sequence[Step]) -> None:
        """Write the last part, of a run that ends before a microbatch or with its table."""
        if microbatch < self._pending[0].microbatches:
            early = (end for end in self._config.ends if end.microbatches == microbatch)
            boundary = next(early, None)
            if boundary is None or microbatch <= self._written:
                return
            if not self._set_aside(boundary, steps):
                return
        self._write(self._pending[0])

    def _set_aside(self, boundary: Boundary, steps: Sequence[Step]) -> bool:
        """Make a boundary the next one, with the older versions where the table has left them.

        Returns False if it has written over one of them, as it does without stashing: then there is
        nothing to be written, and the checkpoint before stays the newest that is whole.
        """
        older = older_versions(self._tasks, [boundary])[0][self._index]
        slots, holds = {0: 0}, {0: 0}
        for (op, stage, microbatch, version), _, _, slot, *_ in steps:
            if op is Op.UPDATE and stage == self._index and microbatch < boundary.microbatches:
                slots[version], holds[slot] = slot, version
        if any(holds[slots[version]] != version for version in older):
            return False
        for version in older:
            self._weights[version] = _copies(self._stage.weights.weights(slots[version]))
        self._pending.appendleft(boundary)
        self._older.appendleft(older)
        self._readers.update(older)
        return True

    def _keep(self, version: int) -> None:
        if version in self._readers:
            self._weights[version] = _copies(self._stage.weights.weights())

    def _write(self, boundary: Boundary) -> None:
        self._pending.popleft()
        older = sorted(self._older.popleft())
        newest = self._stage.weights.newest
        counted = self._counted.popleft() if self._counted else _Counted.of(newest)
        losses = self._losses if self._index == len(boundary.versions) - 1 else []
        losses = [(k, loss) for k, loss in losses if k < boundary.microbatches]
        before = [loss for _, loss in sorted(losses, key=itemgetter(0))]
        parameters = _copies(dict(newest.named_parameters(remove_duplicate=False)))
        content = {
            "about": self._config.about,
            "boundary": tuple(boundary),
            "stage": self._index,
            "worker": self._worker,
            "parameters": parameters,
            "older": {version: self._weights[version] for version in older},
            "buffers": counted.buffers,
            "extra_states": counted.extra_states,
            "state": self._stage.state(),
            "scales": self._stage.scaler and self._stage.scaler.course(),
            "losses": [(k, loss.item()) for k, loss in losses],
        }
        config = self._config
        batches = config.about["batches"] + boundary.batches
        finite = all(bool(t.isfinite().all()) for t in [*before[-1:], *differentiable(parameters)])
        checkpoints.write(
            config.folder,
            batches,
            config.attempt,
            config.parts,
            content,
            finite=finite,
            keep=config.keep,
        )
        self._written = boundary.microbatches
        self._readers.subtract(older)
        for version in older:
            if not self._readers[version]:
                del self._weights[version]


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
