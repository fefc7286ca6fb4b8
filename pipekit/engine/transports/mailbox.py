"""Mailboxes: every worker has one, from which it takes messages by name, in any order.

What the workers of a machine tell one another passes through them, whether the workers are threads
or processes.  The names of all kinds of messages are made here.
"""

from collections.abc import Callable
from typing import Any, Protocol

from pipekit.engine.transport import PartKey
from pipekit.schedules import Message, Payload

Key = tuple[int, int, int, int]
"""The name of a message among all that its receiver gets: its kind, and three numbers."""

ACTIVATION, GRADIENT, VALUES, PART, BATCH, ANOTHER_ACTIVATION = range(6)
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


def batch_key(number: int) -> Key:
    """Return the name of a batch, and of the note that a worker has come to it."""
    return BATCH, 0, 0, number


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

    def wait(self, key: Key) -> Any:
        """Return the content of the message of this name, once it has arrived."""


class KeyedMailbox:
    """A mailbox whose messages arrive in any order, and are taken by name.

    Args:
        mailboxes: everybody's.
        require_peers: raises if another worker has failed.
    """

    def __init__(self, mailboxes: Mailboxes, require_peers: Callable[[], None]) -> None:
        self.put, self._get = mailboxes.put, mailboxes.get
        self._require_peers = require_peers
        self._arrived: dict[Key, Any] = {}

    def wait(self, key: Key) -> Any:
        """Return the content of the message of this name, once it has arrived."""
        arrived = self._arrived
        while key not in arrived:
            self._require_peers()  # whoever waited before may have been the one that was woken
            other, content = self._get()
            self._require_peers()
            arrived[other] = content
        return arrived.pop(key)
