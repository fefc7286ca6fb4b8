"""Links through inboxes: every worker has one, from which it takes messages by name."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pipekit.devices import synchronize
from pipekit.engine.transport import Channel, FlatBucket, PartKey
from pipekit.schedules import MAIN, Message, Payload
from pipekit.trees import Tree

Key = tuple[int, int, int]  # kind; stage, skip, source or 0; microbatch, update or batch
FORWARD, BACKWARD, SKIP_FORWARD, SKIP_BACKWARD, SUM, BATCH, EXCHANGE = range(7)


class Inboxes(Protocol):
    """Everybody's inboxes, as one worker sees them."""

    def put(self, worker: int, key: Key, message: Any) -> None:
        """Put a message into a worker's inbox, without waiting for it to be taken."""

    def get(self) -> tuple[Key, Any]:
        """Wait for the next message in this worker's own."""


class Mail:
    """An inbox whose messages are taken by name, in any order.

    Args:
        inboxes: everybody's.
        require_peers: raises if another worker has failed.
    """

    def __init__(self, inboxes: Inboxes, require_peers: Callable[[], None]) -> None:
        self._inboxes, self._require_peers = inboxes, require_peers
        self._arrived: dict[Key, Any] = {}

    def wait(self, key: Key) -> Any:
        """Return the message of this name, once it has arrived."""
        arrived = self._arrived
        while key not in arrived:
            self._require_peers()  # whoever waited before may have been the one that was woken
            other, message = self._inboxes.get()
            self._require_peers()
            arrived[other] = message
        return arrived.pop(key)


class InboxLinks:
    """A worker's connections.

    Args:
        index: this worker.
        workers: those that have anything to do.
        inboxes: everybody's.
        lanes: other inboxes of everybody's, for sums over the workers of a stage, which are made
            in threads beside the workers; None if every stage is on one worker.
    """

    def __init__(
        self, index: int, workers: Sequence[int], inboxes: Inboxes, lanes: Inboxes | None = None
    ) -> None:
        self._index, self._workers, self._inboxes = index, workers, inboxes
        mail = Mail(inboxes, self.require_peers)
        self.wait = mail.wait
        self._tied = _Channel(inboxes, mail)
        self._lane = lanes and _Channel(lanes, Mail(lanes, self.require_peers))

    def require_peers(self) -> None:
        """See :class:`Links`; here whoever started the workers ends them."""

    def receive(self, message: Message, source: int) -> Tree:
        """See :class:`Links`."""
        return self.wait(_key(message))

    def send(self, message: Message, destination: int, content: Any) -> None:
        """See :class:`Links`."""
        self._inboxes.put(destination, _key(message), content)

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """See :class:`Links`."""
        for worker in self._workers:
            self._inboxes.put(worker, (SUM, self._index, update), values.to("cpu"))
        received = [self.wait((SUM, worker, update)) for worker in self._workers]
        return torch.stack(received).sum(0).to(values.device)

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        """Return how the workers of a stage, or those with tied weights, sum gradients."""
        channel = self._tied if tied else self._lane
        assert channel
        return channel

    def finish(self) -> None:
        """See :class:`Links`; here nothing that was sent is still here."""


def _key(message: Message) -> Key:
    payload, stage, microbatch, skip = message
    forward = payload is Payload.ACTIVATION
    if skip == MAIN:
        return FORWARD if forward else BACKWARD, stage, microbatch
    return SKIP_FORWARD if forward else SKIP_BACKWARD, skip, microbatch


class _Channel:
    """What workers that sum gradients send one another, through inboxes."""

    def __init__(self, inboxes: Inboxes, mail: Mail) -> None:
        self._put, self._wait = inboxes.put, mail.wait

    def send(self, worker: int, key: PartKey, content: FlatBucket) -> None:
        synchronize(content.numbers.device)  # who receives it reads it on a stream of his own
        self._put(worker, _beyond(key), content)

    def expect(self, worker: int, key: PartKey, room: FlatBucket) -> Callable[[], FlatBucket]:
        return lambda: FlatBucket(*self._wait(_beyond(key)))

    def finish(self, number: int, size: int) -> None:
        """Nothing that was sent is still here."""


def _beyond(key: PartKey) -> Key:
    """Return the name of a sum's message among those of all kinds."""
    kind, place, number = key
    return EXCHANGE + kind, place, number
