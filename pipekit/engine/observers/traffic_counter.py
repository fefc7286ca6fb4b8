"""How many bytes a worker sent to whom, for what."""

from collections import Counter

from pipekit.engine.observers.observer import Observer
from pipekit.schedules import Message, Step
from pipekit.trees import Tree


class TrafficCounter(Observer):
    """Counts the bytes that one worker sends to other workers' stages.

    Attributes:
        sent_bytes: by receiver and purpose, "activation", "gradient" or "weights".
    """

    def __init__(self) -> None:
        self.sent_bytes: Counter[tuple[int, str]] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message, unless the worker sends it to itself."""
        if receiver != worker:
            self.sent_bytes[receiver, message.purpose] += size
