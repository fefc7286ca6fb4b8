"""Messages over torch.distributed: between GPUs by NCCL, under torchrun between CPUs by gloo.

The table tells which messages come from whom in which order, so receives are posted ahead and need
no tags.  A message's form (shapes, types, strides) follows from the shapes of its microbatch's
input; it is sent once for each of these on each link, before the first message that has it, and is
unpickled: like all objects that torch.distributed sends, it must come from whom one trusts.
"""

import os
import pickle
import socket
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipekit.devices import CPU, is_accelerator
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import Feed
from pipekit.engine.transport import BeyondStop, Channel, StopPoint
from pipekit.engine.transports.between_processes import OwnData
from pipekit.engine.transports.message_layout import Form, assemble, form_of, layouts, with_strides
from pipekit.engine.transports.process_groups import (
    GroupChannel,
    abort_if_broken,
    group_of,
    wait_for,
)
from pipekit.schedules import Message, Payload, Steps
from pipekit.trees import Tree, leaves

POSTED_AHEAD = 4
CHECKSUM = 1
"""The tag of checksums; all other messages have none."""


@dataclass
class _Incoming:
    """What comes from one sender: the messages still to be posted, and those posted."""

    messages: Sequence[Message]
    position: int = 0
    posted: deque[tuple[Message, Form, list[Tensor], list[Any]]] = field(default_factory=deque)


class DistributedTransport:
    """One process's connections; ``torch.distributed`` is initialised, rank = worker.

    ``feed`` tells the shapes of each microbatch's input; ``data`` are this process's, if it reads
    all batches itself.  With ``read_ahead`` a batch may be read only to post a receive for its
    messages: posted late, a slow link that is busy in the other direction lets the sender know
    later still.
    """

    def __init__(
        self,
        assignment: WorkerAssignment,
        config: RunConfig,
        feed: Feed,
        read_ahead: bool,
        data: OwnData | None = None,
    ) -> None:
        self._rank, self._feed, self._device = assignment.index, feed, assignment.device
        self._read_ahead, self._data, self.stop_point = read_ahead, data, StopPoint()
        self._arrived: dict[Message, Tree] = {}
        # Two: where a stage is on several workers, two may send each other the same kind.
        self._sent_forms: dict[Any, Form] = {}
        self._received_forms: dict[Any, Form] = {}
        self._sending: deque[tuple[list[Any], list[Tensor]]] = deque()
        self._incoming = {
            sender: _Incoming(messages) for sender, messages in assignment.incoming.items()
        }
        # NCCL runs what shares a communicator in order: a receive posted ahead would hold up sends.
        self._groups = {
            link: group_of(dist.group.WORLD, tuple(sorted(set(link))), link)
            if is_accelerator(self._device)
            else None
            for link in sorted(config.table.links)
        }
        # Groups of their own, as sums are made in threads of their own.  All processes make all.
        self._sums = {each: group_of(dist.group.WORLD, *each) for each in config.sharing}

    def require_peers(self) -> None:
        """Go on: if another worker has failed, its starter ends all processes."""

    def end(self, microbatch: int) -> bool:
        """Return False: the receives of what would no longer come are posted."""
        return False

    def receive(self, message: Message, source: int) -> Tree:
        while message not in self._arrived:
            self._take_next(source)
        return self._arrived.pop(message)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        if destination == self._rank:
            self._arrived[message] = content
            return
        if (mine := self._checksums(message, destination, sent=True)) is not None:
            self._start_sends([mine], destination, tag=CHECKSUM)
        form = form_of(content)
        known = self._sent_forms.setdefault(self._form_key(message, destination), form)
        if known is form:
            self._send_form(form, destination)
        elif known != form:
            raise ValueError(
                f"what microbatch {message.microbatch} sends to stage {message.stage} has another "
                f"form than for an earlier microbatch of the same input shapes ({form} after "
                f"{known}): layers whose output shape depends on values need transport='threads' "
                f"or, on CPUs, processes started from here"
            )
        tensors = [t.contiguous() for t in leaves(content)]
        self._start_sends(tensors, destination, group=self._groups[self._rank, destination])
        while self._sending and all(work.is_completed() for work in self._sending[0][0]):
            self._sending.popleft()

    def all_reduce(self, values: Sequence[Tensor], update: int) -> list[Tensor]:
        with abort_if_broken():
            works = [dist.all_reduce(each, async_op=True) for each in values]
        wait_for(works)
        return list(values)

    def channel(self, members: Sequence[int], tied: bool = False) -> Channel:
        return GroupChannel(self._sums[tuple(members), tied])

    def finish(self) -> None:
        for works, _ in self._sending:
            wait_for(works)
        self._sending.clear()

    def _take_next(self, source: int) -> None:
        """Wait for the next message of a sender, and post receives for later ones."""
        incoming = self._incoming[source]
        ahead = incoming.posted[0][0] if incoming.posted else incoming.messages[incoming.position]
        if (mine := self._checksums(ahead, source, sent=False)) is not None:
            theirs = torch.empty_like(mine)
            _receive([theirs], source, tag=CHECKSUM)
            OwnData.require_same(mine, theirs, self._rank, source)
        if not incoming.posted:
            key = self._form_key(incoming.messages[incoming.position], source)
            if key not in self._received_forms:
                self._received_forms[key] = _receive_form(source)
            self._post(source, incoming)
        message, form, tensors, works = incoming.posted.popleft()
        wait_for(works)
        self._arrived[message] = _assembled(form, tensors)
        self._post(source, incoming)

    def _checksums(self, message: Message, peer: int, sent: bool) -> Tensor | None:
        """Return the checksums that go before a message, if any do."""
        if self._data is None or not self._data.begins_batch(message, peer, sent):
            return None
        self._feed.read_to(message.microbatch)
        return self._data.checksums_before(message, peer, sent)

    def _post(self, source: int, incoming: _Incoming) -> None:
        """Post receives for the next messages of which the form is known."""
        group = self._groups[source, self._rank]
        while len(incoming.posted) < POSTED_AHEAD and incoming.position < len(incoming.messages):
            message = incoming.messages[incoming.position]
            if not self._read_ahead and not self._feed.knows(message.microbatch):
                return
            try:
                form = self._received_forms.get(self._form_key(message, source))
            except BeyondStop:  # the data end before it
                return
            if form is None:
                return
            tensors = self._room(form)
            with abort_if_broken():
                works = [dist.irecv(tensor, source, group=group) for tensor in tensors]
            incoming.posted.append((message, form, tensors, works))
            incoming.position += 1

    def _room(self, form: Form) -> list[Tensor]:
        return [
            torch.empty(each.shape, dtype=each.dtype, device=CPU if each.on_host else self._device)
            for each in layouts(form)
        ]

    def _start_sends(self, tensors: list[Tensor], destination: int, **how: Any) -> None:
        with abort_if_broken():
            works = [dist.isend(tensor, destination, **how) for tensor in tensors]
        self._sending.append((works, tensors))

    def _form_key(self, message: Message, peer: int) -> tuple[int, Payload, int, int, Any]:
        payload, stage, microbatch, skip = message
        self._feed.read_to(microbatch)
        return peer, payload, stage, skip, self._feed.shapes[microbatch]

    def _send_form(self, form: Form, destination: int) -> None:
        data = torch.frombuffer(bytearray(_pickled(form)), dtype=torch.uint8)
        # Not waiting: the receiver may be sending a form to us.
        self._start_sends([torch.tensor([len(data)]), data], destination)


def _receive_form(source: int) -> Form:
    size = torch.zeros(1, dtype=torch.int64)
    _receive([size], source)
    data = torch.empty(int(size), dtype=torch.uint8)
    _receive([data], source)
    return pickle.loads(bytes(data.tolist()))


def _receive(tensors: Sequence[Tensor], source: int, **how: Any) -> None:
    with abort_if_broken():
        for tensor in tensors:
            dist.recv(tensor, source, **how)


def _assembled(form: Form, tensors: Sequence[Tensor]) -> Tree:
    received = map(with_strides, tensors, (layout.strides for layout in layouts(form)))
    return assemble(form, received)


def incoming(steps: Sequence[Steps]) -> list[Mapping[int, Sequence[Message]]]:
    """Return, for each worker, the messages that each other one sends it, as they leave there."""
    found: list[dict[int, list[Message]]] = [defaultdict(list) for _ in steps]
    for sender, own in enumerate(steps):
        for step in own.head:
            for message, receiver in step.sends:
                if receiver != sender:
                    found[receiver][sender].append(message)
    return list(found)


def stay_on_loopback() -> None:
    """Make gloo and NCCL listen where only this machine's processes can, unless told otherwise."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)


def _pickled(form: Form) -> bytes:
    # Not by cloudpickle: under torchrun a class of the script is the receiver's own, not a copy.
    try:
        return pickle.dumps(form)
    except (pickle.PicklingError, AttributeError) as error:
        raise TypeError(
            f"a named tuple that was not defined in a module cannot be sent to another process: "
            f"pass on a tuple or a dict, or use transport='threads' ({error})"
        ) from error
