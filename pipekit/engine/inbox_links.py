"""Links through inboxes: every worker has one, from which it takes messages by name."""

from typing import Any, Protocol

import torch
from torch import Tensor

from pipekit.schedules import Op, Step
from pipekit.trees import Tree

Key = tuple[int, int, int]  # kind; stage or source or 0; microbatch or update or batch
FORWARD, BACKWARD, SUM, BATCH = range(4)


class Inboxes(Protocol):
    """Everybody's inboxes, as one worker sees them."""

    def put(self, worker: int, key: Key, message: Any) -> None:
        """Put a message into a worker's inbox, without waiting for it to be taken."""

    def get(self) -> tuple[Key, Any]:
        """Wait for the next message in this worker's own."""


class InboxLinks:
    """A worker's connections.

    Args:
        index: this worker.
        workers: how many there are.
        inboxes: everybody's.
    """

    def __init__(self, index: int, workers: int, inboxes: Inboxes) -> None:
        self._index, self._workers, self._inboxes = index, workers, inboxes
        self._arrived: dict[Key, Any] = {}

    def require_peers(self) -> None:
        """See :class:`pipekit.engine.links.Links`; here whoever started the workers ends them."""

    def receive(self, step: Step) -> Tree:
        """See :class:`pipekit.engine.links.Links`."""
        op, stage, microbatch, _ = step.task
        return self.wait((FORWARD if op is Op.FORWARD else BACKWARD, stage, microbatch))

    def send(self, step: Step, message: Any) -> None:
        """See :class:`pipekit.engine.links.Links`."""
        op, stage, microbatch, _ = step.task
        forward = op is Op.FORWARD
        key = (FORWARD, stage + 1, microbatch) if forward else (BACKWARD, stage - 1, microbatch)
        assert step.destination is not None
        self._inboxes.put(step.destination, key, message)

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """See :class:`pipekit.engine.links.Links`."""
        everybody = range(self._workers)
        for worker in everybody:
            self._inboxes.put(worker, (SUM, self._index, update), values.to("cpu"))
        received = [self.wait((SUM, worker, update)) for worker in everybody]
        return torch.stack(received).sum(0).to(values.device)

    def finish(self) -> None:
        """See :class:`pipekit.engine.links.Links`; here nothing that was sent is still here."""

    def wait(self, key: Key) -> Any:
        """Return the message of this name, once it has arrived."""
        arrived = self._arrived
        while key not in arrived:
            other, message = self._inboxes.get()
            self.require_peers()
            arrived[other] = message
        return arrived.pop(key)
