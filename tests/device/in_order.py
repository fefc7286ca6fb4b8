"""What processes on accelerators see of torch.distributed, for threads: communicators keep order.

As NCCL does it: whatever shares a communicator runs in the order in which its rank asked for it.  A
send and its receive meet, when both are next on their ranks.  What is asked for in one batch runs
at once.  Single messages of two ranks share a communicator of their own in each group; batches have
the group's.  What lies on the host goes by gloo, which keeps the order in each direction only.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from pipekit.devices import ThreadStreams, is_accelerator, new_stream, on_stream, wait_event
from pipekit.engine.assignment import Runner, WorkerAssignment, WorkerReport
from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import End, Feed, Needs
from pipekit.engine.observers.reporter import Listener
from pipekit.engine.transport import Aborted
from pipekit.engine.transports import distributed as distributed_transport
from pipekit.engine.transports.distributed import DistributedTransport, incoming
from pipekit.engine.transports.worker_threads import Notify, WorkerThreads
from pipekit.engine.work import built, run

LONGEST_S = 300


class _Op(NamedTuple):
    """A message of a batch."""

    op: Callable[..., Any]
    tensor: Tensor
    peer: int
    group: Any = None


class _Group(NamedTuple):
    members: tuple[int, ...]
    purpose: object


class _Message:
    """One end of a message on an accelerator."""

    def __init__(self, rank: int, peer: int, tensor: Tensor, sends: bool) -> None:
        self.rank, self.peer, self.tensor, self.sends = rank, peer, tensor, sends
        self.met = False

    def meets(self, other: "_Message") -> bool:
        return not other.met and other.peer == self.rank and other.sends != self.sends


class _Work:
    """A batch of messages: done when all have met."""

    def __init__(
        self, network: "InOrder", messages: Sequence[_Message], stream: torch.Stream
    ) -> None:
        self._network, self.messages, self.stream = network, messages, stream
        self._done: torch.Event | None = None

    @property
    def has_met(self) -> bool:
        """Whether all messages are under way: the host knows no more."""
        if self._done is None and all(message.met for message in self.messages):
            self._done = self.stream.record_event()
        return self._done is not None

    def is_completed(self) -> bool:
        return self.has_met and self._done is not None and self._done.query()

    def wait(self) -> None:
        self._network.until(lambda: self.has_met, f"{len(self.messages)} messages")
        device = self.messages[0].tensor.device
        torch.accelerator.current_stream(device).wait_stream(self.stream)


class _HostWork:
    def __init__(self, network: "InOrder", mail: "deque[Tensor]", room: Tensor | None) -> None:
        self._network, self._mail, self._room = network, mail, room

    def is_completed(self) -> bool:
        return self._room is None

    def wait(self) -> None:
        if self._room is not None:
            self._network.until(lambda: bool(self._mail), "a message on the host")
            self._room.copy_(self._mail.popleft())
            self._room = None


class InOrder:
    """Stands for ``torch.distributed`` in threads, each of which is a rank."""

    P2POp = _Op

    def __init__(self, size: int) -> None:
        self.group: Any = type("group", (), {"WORLD": _Group(tuple(range(size)), None)})
        self._thread = threading.local()
        self._changed = threading.Condition(threading.Lock())
        self._queues: dict[Any, deque[_Work]] = {}
        self._streams: dict[Any, torch.Stream] = {}
        self._mail: dict[Any, deque[Tensor]] = {}
        self._summed: dict[Any, dict[int, Tensor]] = {}
        self._sums: dict[tuple[int, str], int] = {}
        self.failed = False

    def join(self, rank: int) -> None:
        """Make this thread a rank."""
        self._thread.rank = rank

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, but not for ever."""
        end = time.monotonic() + LONGEST_S
        with self._changed:
            while not condition():
                if self.failed:
                    raise Aborted
                if time.monotonic() > end:
                    raise AssertionError(f"rank {self._rank} waits for ever for {what}")
                self._changed.wait(0.1)

    def fail(self) -> None:
        self.failed = True

    def isend(self, tensor: Tensor, peer: int, group: Any = None) -> Any:
        return self._single(tensor, peer, group, sends=True)

    def irecv(self, tensor: Tensor, peer: int, group: Any = None) -> Any:
        return self._single(tensor, peer, group, sends=False)

    def recv(self, tensor: Tensor, peer: int) -> None:
        self.irecv(tensor, peer).wait()

    def batch_isend_irecv(self, ops: Sequence[_Op]) -> list[Any]:
        group = ops[0].group
        messages = [
            _Message(self._rank, op.peer, op.tensor, sends=op.op == self.isend) for op in ops
        ]
        return [self._post((group, "batches"), messages)]

    def all_reduce(self, tensor: Tensor, async_op: bool = False) -> Any:
        """Begin to add up in the order of the ranks."""
        kind, size = tensor.device.type, len(self.group.WORLD.members)
        number = self._sums[self._rank, kind] = self._sums.get((self._rank, kind), 0) + 1
        with self._changed:
            parts = self._summed.setdefault((kind, number), {})
            parts[self._rank] = tensor.cpu()

        def wait() -> None:
            self.until(lambda: len(parts) == size, "a sum over all")
            tensor.copy_(torch.stack([parts[rank] for rank in range(size)]).sum(0))

        if not async_op:
            wait()
        return SimpleNamespace(wait=wait)

    @property
    def _rank(self) -> int:
        # The thread beside a worker, which sums gradients, is named after it.
        name = threading.current_thread().name
        return int(getattr(self._thread, "rank", name.rpartition(" ")[2]))

    def _single(self, tensor: Tensor, peer: int, group: Any, sends: bool) -> Any:
        if is_accelerator(tensor.device):
            pair = (group, *sorted((self._rank, peer)))
            return self._post(pair, [_Message(self._rank, peer, tensor, sends)])
        ends = (self._rank, peer) if sends else (peer, self._rank)
        with self._changed:
            mail = self._mail.setdefault((group, *ends), deque())
            if sends:
                mail.append(tensor.clone())
                self._changed.notify_all()
        return _HostWork(self, mail, None if sends else tensor)

    def _post(self, communicator: Any, messages: Sequence[_Message]) -> _Work:
        device = messages[0].tensor.device
        with self._changed:
            key = communicator, self._rank
            stream = self._streams.setdefault(key, torch.Stream(device))
            stream.wait_stream(torch.accelerator.current_stream(device))
            work = _Work(self, messages, stream)
            self._queues.setdefault(key, deque()).append(work)
            self._meet(communicator)
            self._changed.notify_all()
        return work

    def _meet(self, communicator: Any) -> None:
        """Let messages meet that are next on both of their ranks."""
        queues = [queue for (other, _), queue in self._queues.items() if other == communicator]
        met = True
        while met:
            met = False
            first = [queue[0] for queue in queues if queue]
            for one in first:
                for other in first:
                    met = _exchanged(one, other) or met
            for queue in queues:
                while queue and queue[0].has_met:
                    queue.popleft()
                    met = True


def _exchanged(sender: _Work, receiver: _Work) -> bool:
    """Move what one batch sends and the other receives; return whether there was any."""
    found = False
    for message in sender.messages:
        if not message.sends or message.met:
            continue
        other = next(
            (m for m in receiver.messages if message.meets(m) and m.rank == message.peer), None
        )
        if other is not None:
            receiver.stream.wait_stream(sender.stream)
            with sender.stream, receiver.stream:
                other.tensor.copy_(message.tensor, non_blocking=True)
            sender.stream.wait_stream(receiver.stream)
            message.met = other.met = found = True
    return found


class InOrderRunner(Runner):
    """Runs every worker in a thread, as if it were a process on an accelerator of its own."""

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch | End],
        on_news: Listener | None,
    ) -> list[WorkerReport]:
        read, network = list(batches), InOrder(len(workers))
        issued = ThreadStreams([worker.device for worker in workers]).record_events()
        module = cast(Any, distributed_transport)
        before = module.dist, module.group_of
        coming = incoming([worker.steps for worker in workers])

        def work(place: int, _: Notify) -> WorkerReport:
            assignment = workers[place]
            network.join(assignment.index)
            feed = Feed(read, config.loss, Needs.of(assignment.steps))
            with on_stream(new_stream(assignment.device)):
                for event in issued:  # a process has one stream, and it is all its own
                    wait_event(assignment.device, event)
                told = replace(assignment, incoming=coming[assignment.index])
                transport = DistributedTransport(told, config, feed, read_ahead=True)
                return run(built(assignment), config, transport, feed, on_news)

        module.group_of = lambda _, *about: _Group(*about)
        module.dist = network
        try:
            return WorkerThreads().run(work, len(workers), network.fail)
        finally:
            module.dist, module.group_of = before

    def close(self) -> None:
        pass
