"""One entry of a worker's list: an op for a microbatch on a stage, and the version it names."""

from typing import NamedTuple

from pipekit.schedules.ops import OPS, Op


class Task(NamedTuple):
    """One entry of a worker's list.

    A pass (any op but UPDATE) reads weight ``version`` for ``microbatch``.  An UPDATE produces
    ``version`` from the newest one; its ``microbatch`` is the last of those whose gradients it sums
    (as PipeDream-2BW's Figure 2 labels a version by the last input in it).

    Attributes:
        op: what it does.
        stage: whose layers; stages, microbatches and versions all count from 0.
        microbatch: over the whole run.
        version: of the stage's weights.
    """

    op: Op
    stage: int
    microbatch: int
    version: int

    def later(self, microbatches: int, versions: int) -> "Task":
        """Return the same task, ``microbatches`` and weight ``versions`` later."""
        op, stage, microbatch, version = self
        return Task(op, stage, microbatch + microbatches, version + versions)

    @property
    def label(self) -> str:
        """The letter of the op, with the microbatch of a pass or the version that is made."""
        number = self.microbatch if OPS[self.op].is_pass else self.version
        return f"{self.op.value}{number}"

    def __str__(self) -> str:
        return f"{self.label} of stage {self.stage}"
