"""The transport through mailboxes, the same for threads and for processes of one machine."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipekit.engine.ending import Ending
from pipekit.engine.transport import Channel, FlatBucket, Part
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
        ending: where the run ends, as the mailbox comes to know it.
        end: tells all workers that the run ends before a microbatch.

    Attributes:
        ending: likewise.
    """

    def __init__(
        self,
        worker: int,
        workers: Sequence[int],
        mailbox: Mailbox,
        sums_mailbox: Mailbox | None,
        require_peers: Callable[[], None],
        ending: Ending | None = None,
        end: Callable[[int], None] | None = None,
    ) -> None:
        self._worker, self._workers = worker, workers
        self._mailbox, self._sums_mailbox = mailbox, sums_mailbox
        self.require_peers = require_peers
        self.ending, self._end = ending or Ending(), end

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message, on this worker's device."""
        return self._mailbox.wait(message_key(message), message.microbatch)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message to a worker, without waiting for it."""
        self._mailbox.put(destination, message_key(message), content)

    def begin_all_reduce(self, values: Sequence[Tensor], update: int) -> Callable[[], list[Tensor]]:
        """Send ``values`` to all busy workers; return what waits for theirs, and adds them."""
        for worker in self._workers:
            self._mailbox.put(worker, values_key(self._worker, update), tuple(values))

        def wait() -> list[Tensor]:
            received = [self._mailbox.wait(values_key(worker, update)) for worker in self._workers]
            return [torch.stack(each).sum(0) for each in zip(*received, strict=True)]

        return wait

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        """Return how workers reach one another to sum gradients."""
        mailbox = self._mailbox if tied else self._sums_mailbox
        assert mailbox
        return _MailboxChannel(mailbox)

    def end(self, microbatch: int) -> bool:
        """Let the run end before a microbatch, if it can."""
        if self._end is None:
            return False
        self.ending.at(microbatch)
        self._end(microbatch)
        return True

    def finish(self) -> None:
        """Return at once: what was sent lies with its receiver."""


class _MailboxChannel:
    """The way of parts of sums; see :class:`pipekit.engine.transport.Channel`."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def exchange(
        self, sends: Sequence[Part], receives: Sequence[Part], microbatch: int = -1
    ) -> list[FlatBucket]:
        for part in sends:
            self._mailbox.put(part.worker, part_key(part.key), part.content)
        return [
            FlatBucket(*self._mailbox.wait(part_key(part.key), microbatch)) for part in receives
        ]

    def finish(self, stage: int, number: int, size: int) -> None:
        """Return at once: what was sent lies with its receiver."""
