"""Mailboxes: every worker has one, from which it takes messages by name, in any order.

What the workers of a machine tell one another passes through them, whether the workers are threads
or processes.  The names of all kinds of messages are made here.
"""

from collections.abc import Callable
from typing import Any, Protocol

from pipekit.engine.ending import Ended, Ending
from pipekit.engine.transport import PartKey
from pipekit.schedules import Message, Payload

Key = tuple[int, int, int, int]
"""The name of a message among all that its receiver gets: its kind, and three numbers."""

ACTIVATION, GRADIENT, VALUES, PART, BATCH, ANOTHER_ACTIVATION, END = range(7)
"""The kinds of messages."""


def message_key(message: Message) -> Key:
    """Return the name of what one task sends to another."""
    payload, stage, microbatch, skip, attempt = message
    kind = ACTIVATION if payload is Payload.ACTIVATION else GRADIENT
    if attempt:  # only forwards are run again
        kind = ANOTHER_ACTIVATION
    return kind, stage, skip, microbatch


def values_key(worker: int, update: int) -> Key:
    """Return the name of the values that a worker adds to a sum over all workers."""
    return VALUES, worker, 0, update


def part_key(key: PartKey) -> Key:
    """Return the name of a part of a sum of gradients."""
    return PART, *key


def batch_key(first: int, run: int = 0) -> Key:
    """Return the name of the batch that begins with a microbatch, in a run if there are several.

    Not every batch is taken from a mailbox: the last ones may be other workers' of the same stage.
    """
    return BATCH, 0, run, first


def wanted_key(number: int) -> Key:
    """Return the name of the note that a worker has come to a batch, by the batch's number."""
    return BATCH, 0, 0, number


def end_key(microbatch: int, run: int = 0) -> Key:
    """Return the name of the note that a run, if there are several, ends before a microbatch."""
    return END, 0, run, microbatch


class Mailboxes(Protocol):
    """Everybody's mailboxes, as one worker sees them."""

    def put(self, worker: int, key: Key, content: Any) -> None:
        """Put a message into a worker's mailbox, without waiting for it to be taken."""

    def get(self) -> tuple[Key, Any]:
        """Wait for the next message in this worker's own mailbox, and take it."""


class Mailbox(Protocol):
    """One worker's mailbox, and the way to the others'."""

    def put(self, worker: int, key: Key, content: Any) -> None:
        """Put a message into a worker's mailbox, without waiting for it to be taken."""

    def wait(self, key: Key, microbatch: int = -1) -> Any:
        """Return the content of the message of this name, once it has arrived.

        Args:
            key: its name.
            microbatch: what it belongs to; -1: it comes wherever the run ends.
        """


class KeyedMailbox:
    """A mailbox whose messages arrive in any order, and are taken by name.

    Args:
        mailboxes: everybody's.
        require_peers: raises if another worker has failed.
        ending: where the run ends, as far as it is known.
        run: its number, if the mailboxes are used for several.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        require_peers: Callable[[], None],
        ending: Ending | None = None,
        run: int = 0,
    ) -> None:
        self.put, self._get = mailboxes.put, mailboxes.get
        self._require_peers, self._ending, self._run = require_peers, ending or Ending(), run
        self._arrived: dict[Key, Any] = {}

    def wait(self, key: Key, microbatch: int = -1) -> Any:
        """Return the content of the message of this name, once it has arrived.

        Args:
            key: its name.
            microbatch: what it belongs to; -1: it comes wherever the run ends.

        Raises:
            Ended: it will not come, as the run ends before its microbatch.
        """
        arrived = self._arrived
        while key not in arrived:
            self._require_peers()  # whoever waited before may have been the one that was woken
            if microbatch >= self._ending.microbatch:
                raise Ended
            other, content = self._get()
            self._require_peers()
            if other[0] != END:
                arrived[other] = content
            elif other[2] == self._run:
                self._ending.at(other[3])
        return arrived.pop(key)
