"""What a worker does for checkpoints: it writes its own, and takes up an interrupted run from one.

Nobody coordinates anything: the table tells every worker where a batch boundary lies in its own
list (PipeDream, section 4: each stage locally decides to dump its parameters).  At a boundary the
pipeline is full as ever.  A part therefore holds, besides the newest weights, the older versions
that the table lets later microbatches read, and running statistics of the moment when they had
counted the batches before the boundary and no other.  Whatever had been computed for later
microbatches is computed again: the random numbers of a layer depend on the microbatch alone.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.execution.stage import Stage
from pipekit.layers.buffers import named_buffers, set_buffers
from pipekit.schedules import Boundary, Op, Step, Task, older_versions

Execute = Callable[[Step], None]
Losses = list[tuple[int, Tensor]]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Saving:
    """What the workers of a run have to know to write checkpoints.

    Attributes:
        folder: of all checkpoints.
        attempt: hexadecimal digits that are new after each resumption.
        about: what is common to all parts; ``batches`` counts those before the run's table.
        parts: how many parts a checkpoint has.
        boundaries: where they are written, the last at the end of the run.
    """

    folder: Path
    attempt: str
    about: dict[str, Any]
    parts: int
    boundaries: tuple[Boundary, ...]


@dataclass(frozen=True)
class Resumption:
    """Where a run is taken up again.

    Attributes:
        home: the checkpoint.
        boundary: after which.
    """

    home: Path
    boundary: Boundary


class Keeper:
    """Sees to one worker's checkpoints.

    Args:
        worker: its number.
        stages: those that live there, ready for the run.
        steps: what it will do.
        losses: of (microbatch, loss), which the run adds to.
        saving: how checkpoints are written, or None.
        resumption: where the run is taken up, or None: at its beginning.
    """

    def __init__(
        self,
        worker: int,
        stages: Mapping[int, Stage],
        steps: Sequence[Step],
        losses: Losses,
        saving: Saving | None,
        resumption: Resumption | None,
    ) -> None:
        self._done = resumption.boundary if resumption else None
        self._restored = {}
        if resumption:
            self._restored = {
                number: _Restored(stage, resumption, worker, losses)
                for number, stage in stages.items()
            }
        self._saved = {}
        if saving:
            tasks = [step.task for step in steps]
            self._saved = {
                number: _Saved(stage, saving, worker, tasks, losses, self._done)
                for number, stage in stages.items()
            }

    def around(self, execute: Execute) -> Execute:
        """Return what executes a step and sees to checkpoints."""

        def attended(step: Step) -> None:
            op, stage, microbatch, version = step.task
            saved = self._saved.get(stage)
            if op is Op.FORWARD and saved:
                saved.before_forward(microbatch)
            if self._done and microbatch < self._done.microbatches:
                self._restored[stage].repeat(step)
            else:
                execute(step)
            if op is Op.UPDATE and saved:
                saved.after_update(version)

        return attended

    def end(self) -> None:
        """Write what is to be written at the end of the run."""
        for saved in self._saved.values():
            saved.end()


class _Restored:
    """A stage as it was at a boundary, put together while the run's table is gone through again."""

    def __init__(self, stage: Stage, resumption: Resumption, worker: int, losses: Losses) -> None:
        self._stage = stage
        content = checkpoints.load_part(resumption.home, stage.spec.index, worker)
        set_buffers(stage.versions.newest, content["buffers"])
        if stage.scaler:
            stage.scaler.take_up(content["scales"])
        losses += [(k, torch.tensor(x, dtype=torch.float64)) for k, x in content["losses"]]
        newest = resumption.boundary.versions[stage.spec.index]
        self._versions: dict[int, Tensors] = content["older"] | {newest: content["parameters"]}
        self._restore(0, 0)

    def repeat(self, step: Step) -> None:
        """Put things where a task left them that was done before the boundary."""
        op, _, _, version = step.task
        versions = self._stage.versions
        if op is Op.BACKWARD:
            # Other gradients in that buffer are set aside, and summed as they were.
            versions.accumulate(step.slot, step.update)
        else:
            versions.gradients(version)
            self._restore(version, step.slot)

    def _restore(self, version: int, buffer: int) -> None:
        if version in self._versions:
            self._stage.versions.restore(buffer, self._versions.pop(version))


class _Saved:
    """What is set aside of a stage until its part of a checkpoint can be written."""

    def __init__(
        self,
        stage: Stage,
        saving: Saving,
        worker: int,
        tasks: Sequence[Task],
        losses: Losses,
        done: Boundary | None,
    ) -> None:
        self._stage, self._saving, self._worker, self._losses = stage, saving, worker, losses
        after = done.microbatches if done else 0
        self._pending = deque(b for b in saving.boundaries if b.microbatches > after)
        older = [read[stage.spec.index] for read in older_versions(tasks, self._pending)]
        self._older = deque(older)
        self._readers = Counter(chain.from_iterable(older))  # boundaries, by version
        self._weights: dict[int, Tensors] = {}  # by version
        self._buffers: deque[Tensors] = deque()  # of the first of the pending boundaries
        self._keep(0)

    def before_forward(self, microbatch: int) -> None:
        """Keep running statistics that have just counted all batches before a boundary."""
        now: Tensors | None = None
        for boundary in islice(self._pending, len(self._buffers), None):
            if boundary.microbatches > microbatch:
                break
            now = now or _copies(named_buffers(self._stage.versions.newest))
            self._buffers.append(now)

    def after_update(self, version: int) -> None:
        """Keep weights that will be read again after a boundary; write if this is one."""
        self._keep(version)
        boundary = self._pending[0]
        if version == boundary.versions[self._stage.spec.index] and len(self._pending) > 1:
            self._write(boundary)

    def end(self) -> None:
        """Write the last part, at the end of the run."""
        self._write(self._pending[0])

    def _keep(self, version: int) -> None:
        if version in self._readers:
            self._weights[version] = _copies(self._stage.versions.weights())

    def _write(self, boundary: Boundary) -> None:
        self._pending.popleft()
        older = sorted(self._older.popleft())
        stage, newest = self._stage.spec.index, self._stage.versions.newest
        statistics = self._buffers.popleft() if self._buffers else _copies(named_buffers(newest))
        losses = self._losses if stage == len(boundary.versions) - 1 else []
        content = {
            "about": self._saving.about,
            "boundary": tuple(boundary),
            "stage": stage,
            "worker": self._worker,
            "parameters": _copies(dict(newest.named_parameters(remove_duplicate=False))),
            "older": {version: self._weights[version] for version in older},
            "buffers": statistics,
            "state": self._stage.state(),
            "scales": self._stage.scaler and self._stage.scaler.course(),
            "losses": [(k, x.item()) for k, x in losses if k < boundary.microbatches],
        }
        saving = self._saving
        batches = saving.about["batches"] + boundary.batches
        checkpoints.write(saving.folder, batches, saving.attempt, saving.parts, content)
        self._readers.subtract(older)
        for version in older:
            if not self._readers[version]:
                del self._weights[version]


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
