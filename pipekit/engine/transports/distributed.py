"""Messages over torch.distributed: between GPUs by NCCL, under torchrun between CPUs by gloo.

The table tells which messages come from whom in which order, so that receives are posted ahead and
need no tags.  A message's form (shapes, types, strides) follows from the shapes of its microbatch's
input, and is sent once for each of these on each link, before the first message that has it.  It is
unpickled: it must come from whom one trusts.
"""

import os
import pickle
import socket
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipekit.devices import CPU, is_accelerator
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import BeyondStop, Feed, StopPoint
from pipekit.engine.transport import Aborted, Exchange, FlatBucket, PartKey, Parts
from pipekit.engine.transports.message_layout import Form, assemble, form_of, layouts, with_strides
from pipekit.schedules import Message, Payload, Steps
from pipekit.schedules.messages.program import POSTED_AHEAD
from pipekit.trees import Tree, leaves


@contextmanager
def abort_if_broken() -> Iterator[None]:
    """Turn an error of the network, which means that a peer is gone, into Aborted."""
    try:
        yield
    except RuntimeError as error:
        raise Aborted(str(error)) from error


def wait_for(works: Iterable[Any]) -> None:
    """Wait for sends or receives that were begun; raises Aborted if a peer is gone."""
    with abort_if_broken():
        for work in works:
            work.wait()


@cache
def group_of(world: object, members: tuple[int, ...], purpose: object) -> Any:
    """Return the process group of some workers for one purpose, the same in every run.

    All processes have to ask for all groups of a run in one order.
    """
    return dist.new_group(list(members))


class DistributedTransport:
    """One process's connections; ``torch.distributed`` is initialised, rank = worker.

    With ``read_ahead`` a batch may be read only to post a receive for its messages: posted late, a
    slow link that is busy in the other direction lets the sender know later still.
    """

    def __init__(
        self, assignment: WorkerAssignment, config: RunConfig, feed: Feed, read_ahead: bool
    ) -> None:
        self._rank, self._feed, self._device = assignment.index, feed, assignment.device
        self._read_ahead, self.stop_point = read_ahead, StopPoint()
        self._arrived: dict[Message, Tree] = {}
        # Two: where a stage is on several workers, two may send each other the same kind.
        self._sent_forms: dict[Any, Form] = {}
        self._received_forms: dict[Any, Form] = {}
        self._sending: deque[tuple[list[Any], list[Tensor]]] = deque()
        # By sender, the messages whose receives are still to be posted, and those posted, in order.
        self._coming = {source: deque(each) for source, each in assignment.incoming.items()}
        self._posted: dict[int, deque[tuple[Message, Form, list[Tensor], list[Any]]]]
        self._posted = defaultdict(deque)
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
        form = form_of(content)
        known = self._sent_forms.setdefault(self._form_key(message, destination), form)
        if known is form:
            # Not by cloudpickle: under torchrun a class of the script is the receiver's own.
            data = torch.frombuffer(bytearray(pickle.dumps(form)), dtype=torch.uint8)
            # Not waiting: the receiver may be sending a form to us.
            self._start_sends([torch.tensor([len(data)], device=CPU), data], destination)
        elif known != form:
            raise ValueError(
                f"what microbatch {message.microbatch} sends to stage {message.stage} has another "
                f"form than for an earlier microbatch of the same input shapes ({form} after "
                f"{known}): layers whose output shape depends on values need transport='threads' "
                f"or, on CPUs, processes started from here"
            )
        tensors = [t.contiguous() for t in leaves(content)]
        self._start_sends(tensors, destination, self._groups[self._rank, destination])
        while self._sending and all(work.is_completed() for work in self._sending[0][0]):
            self._sending.popleft()

    def all_reduce(self, values: Sequence[Tensor], update: int) -> list[Tensor]:
        with abort_if_broken():
            works = [dist.all_reduce(each, async_op=True) for each in values]
        wait_for(works)
        return list(values)

    def exchange_among(self, members: Sequence[int], tied: bool = False) -> Exchange:
        return partial(_exchange, self._sums[tuple(members), tied])

    def finish(self) -> None:
        for works, _ in self._sending:
            wait_for(works)
        self._sending.clear()

    def _take_next(self, source: int) -> None:
        """Wait for the next message of a sender, and post receives for later ones."""
        if not self._posted[source]:
            key = self._form_key(self._coming[source][0], source)
            if key not in self._received_forms:
                size = torch.zeros(1, dtype=torch.int64, device=CPU)
                with abort_if_broken():
                    dist.recv(size, source)
                    data = torch.empty(int(size), dtype=torch.uint8, device=CPU)
                    dist.recv(data, source)
                self._received_forms[key] = pickle.loads(bytes(data.tolist()))
            self._post(source)
        message, form, tensors, works = self._posted[source].popleft()
        wait_for(works)
        strides = (layout.strides for layout in layouts(form))
        self._arrived[message] = assemble(form, map(with_strides, tensors, strides))
        self._post(source)

    def _post(self, source: int) -> None:
        """Post receives for the next messages of which the form is known."""
        group = self._groups[source, self._rank]
        coming, posted = self._coming[source], self._posted[source]
        while coming and len(posted) < POSTED_AHEAD:
            message = coming[0]
            if not self._read_ahead and not self._feed.knows(message.microbatch):
                return
            try:
                form = self._received_forms.get(self._form_key(message, source))
            except BeyondStop:  # the data end before it
                return
            if form is None:
                return
            tensors = [
                torch.empty(
                    each.shape, dtype=each.dtype, device=CPU if each.on_host else self._device
                )
                for each in layouts(form)
            ]
            with abort_if_broken():
                works = [dist.irecv(tensor, source, group=group) for tensor in tensors]
            posted.append((coming.popleft(), form, tensors, works))

    def _start_sends(self, tensors: list[Tensor], destination: int, group: Any = None) -> None:
        with abort_if_broken():
            works = [dist.isend(tensor, destination, group=group) for tensor in tensors]
        self._sending.append((works, tensors))

    def _form_key(self, message: Message, peer: int) -> tuple[int, Payload, int, int, Any]:
        payload, stage, microbatch, skip = message
        return peer, payload, stage, skip, self._feed.shapes(microbatch)


def _exchange(
    group: Any, key: PartKey, sends: Parts, receives: Parts, microbatch: int
) -> list[FlatBucket]:
    """Exchange parts within a process group: two workers send and receive in one order, unnamed."""
    # Receives come first: on the host, a link that waits for them is busy in one direction
    # only.  What lies on an accelerator goes as one: whatever shares a communicator of NCCL's
    # runs in order, so that these receives would hold up the sends that others wait for.
    works, together = [], []
    with abort_if_broken():
        for call, parts in (dist.irecv, receives), (dist.isend, sends):
            for worker, tensor in ((w, t) for w, part in parts.items() for t in part):
                if is_accelerator(tensor.device):
                    together.append(dist.P2POp(call, tensor, worker, group))
                else:
                    works.append(call(tensor, worker, group=group))
        if together:
            works += dist.batch_isend_irecv(together)
    wait_for(works)
    return [*receives.values()]


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
