"""The transport through mailboxes, one for threads and for processes of one machine.

Every worker has a mailbox, from which it takes messages by name, in any order.  The names of all
kinds of messages are made here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pipekit.engine.transport import BeyondStop, Channel, FlatBucket, StopPoint, SumPart
from pipekit.schedules import Message, Payload
from pipekit.trees import Tree

Key = tuple[int, int, int, int]
"""The name of a message among all that its receiver gets: its kind, and three numbers."""

ACTIVATION, GRADIENT, VALUES, PART, BATCH, END = range(6)
"""The kinds of messages."""

_GRADIENT = Payload.GRADIENT  # Python looks up a member of an enumeration in 0.1 us


def message_key(message: Message) -> Key:
    """Return the name of what one task sends to another."""
    payload, stage, microbatch, skip = message
    return GRADIENT if payload is _GRADIENT else ACTIVATION, stage, skip, microbatch


def end_key(microbatch: int, run: int = 0) -> Key:
    """Return the name of the note that a run, if there are several, ends before a microbatch."""
    return END, 0, run, microbatch


class Mailboxes(Protocol):
    """Everybody's mailboxes, as one worker sees them."""

    def put(self, worker: int, key: Key, content: Any) -> None:
        """Put a message into a worker's mailbox, without waiting for it to be taken."""

    def get(self) -> tuple[Key, Any]:
        """Wait for the next message in this worker's own mailbox, and take it."""


class KeyedMailbox:
    """A mailbox whose messages arrive in any order, and are taken by name.

    ``require_peers`` raises if another worker has failed; ``run`` is the run's number, if the
    mailboxes are used for several.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        require_peers: Callable[[], None],
        stop_point: StopPoint | None = None,
        run: int = 0,
    ) -> None:
        self.put: Callable[[int, Key, Any], None] = mailboxes.put
        self._get = mailboxes.get
        self.require_peers, self._run = require_peers, run
        self.stop_point = stop_point or StopPoint()
        self._arrived: dict[Key, Any] = {}

    def wait(self, key: Key, microbatch: int = -1) -> Any:
        """Return the content of the message of this name, once it has arrived.

        It belongs to a microbatch, or (-1) comes wherever the run ends; raises BeyondStop if the
        run ends before.
        """
        arrived = self._arrived
        while key not in arrived:
            self.require_peers()  # whoever waited before may have been the one that was woken
            if microbatch >= self.stop_point.microbatch:
                raise BeyondStop
            other, content = self._get()
            self.require_peers()
            if other[0] != END:
                arrived[other] = content
            elif other[2] == self._run:
                self.stop_point.at(other[3])
        return arrived.pop(key)


class MailboxTransport:
    """A worker's connections to the others, through mailboxes.

    ``workers`` are those that have anything to do; ``sums_mailbox`` is that of the thread which
    sums gradients with the other workers of a stage; ``end`` tells all that the run ends early.
    """

    def __init__(
        self,
        worker: int,
        workers: Sequence[int],
        mailbox: KeyedMailbox,
        sums_mailbox: KeyedMailbox | None,
        end: Callable[[int], None] | None = None,
    ) -> None:
        self._worker, self._workers = worker, workers
        self._mailbox, self._sums_mailbox, self._end = mailbox, sums_mailbox, end
        self.require_peers, self.stop_point = mailbox.require_peers, mailbox.stop_point

    def receive(self, message: Message, source: int) -> Tree:
        return self._mailbox.wait(message_key(message), message.microbatch)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        self._mailbox.put(destination, message_key(message), content)

    def all_reduce(self, values: Sequence[Tensor], update: int) -> list[Tensor]:
        for worker in self._workers:
            self._mailbox.put(worker, (VALUES, self._worker, 0, update), tuple(values))
        keys = [(VALUES, worker, 0, update) for worker in self._workers]
        received = [self._mailbox.wait(key) for key in keys]
        return [torch.stack(each).sum(0) for each in zip(*received, strict=True)]

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        mailbox = self._mailbox if tied else self._sums_mailbox
        assert mailbox
        return _MailboxChannel(mailbox)

    def end(self, microbatch: int) -> bool:
        if self._end is None:
            return False
        self.stop_point.at(microbatch)
        self._end(microbatch)
        return True

    def finish(self) -> None:
        """Return at once: what was sent lies with its receiver."""


class _MailboxChannel:
    """A channel through mailboxes."""

    def __init__(self, mailbox: KeyedMailbox) -> None:
        self._mailbox = mailbox

    def exchange(
        self, sends: Sequence[SumPart], receives: Sequence[SumPart], microbatch: int = -1
    ) -> list[FlatBucket]:
        for part in sends:
            self._mailbox.put(part.worker, (PART, *part.key), part.content)
        return [FlatBucket(*self._mailbox.wait((PART, *part.key), microbatch)) for part in receives]

    def finish(self, stage: int, number: int, size: int) -> None:
        """Return at once: what was sent lies with its receiver."""
