"""The transport of threads and of processes of one machine: each worker has a mailbox.

Messages are taken from it by name, in any order.  All names are made here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipekit.engine.feed import BeyondStop, StopPoint
from pipekit.engine.transport import Exchange, FlatBucket, PartKey, Parts
from pipekit.schedules import Message, Payload
from pipekit.trees import Tree

Key = tuple[int, int, int, int]
"""The name of a message among all that its receiver gets: its kind, and three numbers."""

ACTIVATION, GRADIENT, VALUES, BATCH, END, PART = range(6)
"""The kinds of messages; PART and the one behind it are the phases of a sum."""

_GRADIENT = Payload.GRADIENT  # Python looks up a member of an enumeration in 0.1 us


def message_key(message: Message) -> Key:
    """Return the name of what one task sends to another."""
    payload, stage, microbatch, skip = message
    return GRADIENT if payload is _GRADIENT else ACTIVATION, stage, skip, microbatch


def end_key(microbatch: int, run: int = 0) -> Key:
    """Return the name of the note that a run, if there are several, ends before a microbatch."""
    return END, 0, run, microbatch


class KeyedMailbox:
    """A mailbox whose messages arrive in any order, and are taken by name."""

    def __init__(
        self,
        put: Callable[[int, Key, Any], None],  # puts a message into a worker's mailbox
        get: Callable[[], tuple[Key, Any]],  # waits for the next one here
        require_peers: Callable[[], None] = lambda: None,  # raises if another worker has failed
        stop_point: StopPoint | None = None,
        run: int = 0,  # its number
    ) -> None:
        self.put, self._get = put, get
        self.require_peers, self._run = require_peers, run
        self.stop_point = stop_point or StopPoint()
        self._arrived: dict[Key, Any] = {}

    def wait(self, key: Key, microbatch: int = -1) -> Any:
        """Return the content of a message; BeyondStop: the run ends before its microbatch.

        A message without one (-1) comes wherever the run ends.
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

    def exchange(
        self, key: PartKey, sends: Parts, receives: Parts, microbatch: int
    ) -> list[FlatBucket]:
        phase, stage, own, number = key
        for worker, content in sends.items():
            self.put(worker, (PART + phase, stage, own, number), content)
        keys = [(PART + phase, stage, sender, number) for sender in receives]
        return [FlatBucket(*self.wait(each, microbatch)) for each in keys]


class MailboxTransport:
    """A worker's connections to the busy ``workers``, through mailboxes."""

    def __init__(
        self,
        worker: int,
        workers: Sequence[int],
        mailbox: KeyedMailbox,
        sums_mailbox: KeyedMailbox | None,  # of the thread that sums gradients with other workers
        end: Callable[[int], None] = lambda microbatch: None,  # tells all that the run ends early
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

    def exchange_among(self, members: Sequence[int], tied: bool = False) -> Exchange:
        mailbox = self._mailbox if tied else self._sums_mailbox
        assert mailbox
        return mailbox.exchange

    def end(self, microbatch: int) -> bool:
        self.stop_point.at(microbatch)
        self._end(microbatch)
        return True

    def finish(self) -> None:
        """Return at once: what was sent lies with its receiver."""
