"""The transport through mailboxes, the same for threads and for processes of one machine."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipekit.engine.transport import Channel, FlatBucket, PartKey
from pipekit.engine.transports.mailbox import Mailbox, message_key, part_key, values_key
from pipekit.schedules import Message
from pipekit.trees import Tree


class MailboxTransport:
    """A worker's connections to the others, through mailboxes.

    Args:
        worker: its number.
        workers: those that have anything to do.
        mailbox: the worker's.
        sums_mailbox: its communication thread's, which sums gradients with the other workers of its
            stages; None if every stage is on one worker.
        require_peers: raises if another worker has failed.
    """

    def __init__(
        self,
        worker: int,
        workers: Sequence[int],
        mailbox: Mailbox,
        sums_mailbox: Mailbox | None,
        require_peers: Callable[[], None],
    ) -> None:
        self._worker, self._workers = worker, workers
        self._mailbox, self._sums_mailbox = mailbox, sums_mailbox
        self.require_peers = require_peers

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message, on this worker's device."""
        return self._mailbox.wait(message_key(message))

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""
        self._mailbox.put(destination, message_key(message), content)

    def all_reduce(self, values: Tensor, update: int) -> Tensor:
        """Return the sum of all busy workers' ``values``, added in the order of the workers."""
        for worker in self._workers:
            self._mailbox.put(worker, values_key(self._worker, update), values.to("cpu"))
        received = [self._mailbox.wait(values_key(worker, update)) for worker in self._workers]
        return torch.stack(received).sum(0).to(values.device)

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        """Return how workers reach one another to sum gradients."""
        mailbox = self._mailbox if tied else self._sums_mailbox
        assert mailbox
        return _MailboxChannel(mailbox)

    def finish(self) -> None:
        """Return at once: what was sent lies with its receiver."""


class _MailboxChannel:
    """The way of parts of sums; see :class:`pipekit.engine.transport.Channel`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def send(self, worker: int, key: PartKey, content: FlatBucket) -> None:
        self._mailbox.put(worker, part_key(key), content)

    def expect(self, worker: int, key: PartKey, room: FlatBucket) -> Callable[[], FlatBucket]:
        return lambda: FlatBucket(*self._mailbox.wait(part_key(key)))

    def finish(self, number: int, size: int) -> None:
        """Return at once: what was sent lies with its receiver."""
