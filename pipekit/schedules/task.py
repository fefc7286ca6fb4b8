"""The three things a worker can do, and the weight version each of them names."""

from enum import Enum
from typing import NamedTuple


class Op(Enum):
    """What a task does; the value is its letter in a picture."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"


class Task(NamedTuple):
    """One entry of a worker's list.

    A FORWARD or BACKWARD reads weight ``version`` for ``microbatch``.  An UPDATE produces
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

    def __str__(self) -> str:
        name = f"U{self.version}" if self.op is Op.UPDATE else f"{self.op.value}{self.microbatch}"
        return f"{name} of stage {self.stage}"
