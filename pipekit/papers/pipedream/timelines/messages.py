"""Counting what the workers of a training send one another (PipeDream, section 3.3)."""

from collections import Counter

from torch import Tensor

from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.schedules import Message, Step
from pipekit.trees import Tree, leaves


class MessageCounter(Observer):
    """Counts everything that workers send one another, in ``seen``, by its purpose."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message between stages; one without tensors is control."""
        self.seen[message.payload.value if leaves(tree) else "control"] += 1

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """Count a part of a sum of gradients."""
        self.seen["weights"] += 1

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """Count what decides on an update."""
        self.seen["control"] += 1
