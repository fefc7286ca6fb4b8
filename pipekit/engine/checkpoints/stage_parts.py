"""Writes one worker's part of each checkpoint, without coordination, and restores stages from them.

The table tells every worker where a batch boundary lies in its own list (PipeDream, section 4: each
stage locally decides to dump its parameters).  There the pipeline stays full: a part also holds the
older versions that later microbatches read, and running statistics that have counted exactly the
batches before.  A run that is taken up again computes all microbatches after the boundary.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice

from torch import Tensor, nn

from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.checkpoints.files import Content
from pipekit.engine.checkpoints.resume_point import Tensors, read_part
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.pipeline_io import LossLog
from pipekit.engine.execution.stage import Stage
from pipekit.engine.feed import StopPoint
from pipekit.engine.observers.observer import Observer, WorkerView
from pipekit.layers.module_state import named_buffers, set_buffers
from pipekit.partition.recording.stage import extra_states, set_extra_states
from pipekit.schedules import Op, Step
from pipekit.schedules.lowering.boundaries import Boundary, older_versions
from pipekit.trees import differentiable


class CheckpointWriter(Observer):
    """Writes the parts of one stage of a worker, at every boundary."""

    def __init__(
        self,
        index: int,
        stage: Stage,
        assignment: WorkerAssignment,
        run: RunConfig,
        losses: LossLog,
        stop_point: StopPoint,
        errors: Sequence[Exception],
    ) -> None:
        config = run.checkpoints
        assert config
        self._stage, self._index, self._config = stage, index, config
        self._assignment, self._losses = assignment, losses
        self._stop_point, self._errors = stop_point, errors
        self._tasks = tasks = [step.task for step in assignment.steps.head]
        self._written = after = run.begin.microbatches
        self._pending = deque(b for b in config.boundaries if b.microbatches > after)
        older = [read[self._index] for read in older_versions(tasks, self._pending)]
        self._older = deque(older)
        self._readers = Counter(chain.from_iterable(older))  # boundaries, by version
        self._weights: dict[int, Tensors] = {}  # by version
        self._counted: deque[Content] = deque()  # of the first of the pending boundaries

    def begin(self, worker: WorkerView) -> None:
        """Keep the weights at the beginning, if the first checkpoint needs them."""
        self._keep(0)

    def before_step(self, worker: int, step: Step) -> None:
        """Before a forward, keep running statistics that have counted all before a boundary."""
        op, stage, microbatch, _ = step.task
        if op is not Op.FORWARD or stage != self._index:
            return
        now: Content = {}
        for boundary in islice(self._pending, len(self._counted), None):
            if boundary.microbatches > microbatch:
                break
            now = now or _counted(self._stage.weights.newest)
            self._counted.append(now)

    def after_step(self, worker: int, step: Step) -> None:
        """After an update, keep weights that are read after a boundary; write if this is one."""
        op, stage, _, version = step.task
        if op is not Op.UPDATE or stage != self._index:
            return
        self._keep(version)
        boundary = self._pending[0]
        if version == boundary.versions[stage] and len(self._pending) > 1:
            self._write(boundary)

    def end(self, worker: int) -> None:
        """Write the last part, of a run that ends early or with its table."""
        if self._errors:  # in a forward: its running statistics fit no boundary
            return
        microbatch = self._stop_point.microbatch
        if microbatch < self._pending[0].microbatches:
            early = (end for end in self._config.ends if end.microbatches == microbatch)
            boundary = next(early, None)
            if boundary is None or microbatch <= self._written or not self._set_aside(boundary):
                return
        self._write(self._pending[0])

    def _set_aside(self, boundary: Boundary) -> bool:
        """Make a boundary the next one, with the older versions in their slots.

        False: the table has overwritten one of them, as it does without stashing.
        """
        older = older_versions(self._tasks, [boundary])[0][self._index]
        slots, holds = {0: 0}, {0: 0}
        for (op, stage, microbatch, version), _, _, slot, *_ in self._assignment.steps.head:
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
        counted = self._counted.popleft() if self._counted else _counted(newest)
        is_last = self._index == len(boundary.versions) - 1
        losses = [each for each in self._losses if is_last and each[0] < boundary.microbatches]
        last = max(losses)[1] if losses else 0.0
        parameters = _copies(dict(newest.named_parameters(remove_duplicate=False)))
        content = {
            "about": self._config.about,
            "boundary": tuple(boundary),
            "stage": self._index,
            "worker": self._assignment.index,
            "parameters": parameters,
            "older": {version: self._weights[version] for version in older},
            "state": self._stage.state(),
            "losses": losses,
            **counted,
        }
        sound = (bool(each.isfinite().all()) for each in differentiable(parameters))
        finite = math.isfinite(last) and all(sound)
        checkpoints.write(self._config, boundary.batches, content, finite)
        self._written = boundary.microbatches
        self._readers.subtract(older)
        for version in older:
            if not self._readers[version]:
                del self._weights[version]


def _counted(layers: nn.Module) -> Content:
    """Return what forwards leave in layers: running statistics, and extra states of modules."""
    return {"buffers": _copies(named_buffers(layers)), "extra_states": extra_states(layers)}


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}


def restoring(
    execute: Callable[[Step], None],
    config: RunConfig,
    worker: int,
    stages: Mapping[int, Stage],
    losses: LossLog,
) -> Callable[[Step], None]:
    """Return what executes a worker's steps, of which those before the boundary are restored."""
    assert config.resumed
    parts, begin = checkpoints.parts_of(config.resumed), config.begin
    versions: dict[int, dict[int, Tensors]] = {}  # of each stage, those not yet in their slots

    def restore(index: int, version: int, slot: int) -> None:
        if version in versions[index]:
            stages[index].weights.restore(slot, versions[index].pop(version), version)

    for index, stage in stages.items():
        content = read_part(next(part for part in parts if part[:2] == (index, worker)))
        set_buffers(stage.weights.newest, content["buffers"])
        for layers in stage.weights.modules:
            set_extra_states(layers, content["extra_states"])
        if stage.scaler and (saved := content["state"]["loss_scaler"]):
            stage.scaler.load_state_dict(saved)
        elif stage.scaler:  # the saved run had none
            stage.scaler.begin_after(begin.versions[index])
        for microbatch, loss in content["losses"]:
            losses.add(microbatch, loss)
        newest = begin.versions[index]
        versions[index] = content["older"] | {newest: content["parameters"]}
        restore(index, 0, 0)

    def run(step: Step) -> None:
        op, index, microbatch, version = step.task
        if microbatch >= begin.microbatches:
            execute(step)
        elif op.adds_gradient:
            # Other gradients in that slot are set aside, and summed as they were.
            stages[index].weights.accumulate(step.slot, step.update)
        elif op is Op.UPDATE:
            stages[index].weights.gradients(version)
            restore(index, version, step.slot)

    return run
