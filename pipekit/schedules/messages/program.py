"""A table with its messages: each worker's tasks, sends and receives, in the order of its calls.

The table leaves this order open; a framework decides it, and whether workers hang.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, groupby
from typing import NamedTuple

from pipekit.choices import require_choice, require_kind
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.ops import Payload
from pipekit.schedules.replay import Replay
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task
from pipekit.schedules.transfers import DISCARD, GATHER, SUM


class TransferKind(Enum):
    """Which end of a message a worker has."""

    SEND = "send"
    RECEIVE = "receive"


class Transfer(NamedTuple):
    """A worker's call to send a message or to receive it."""

    way: TransferKind  # which of both
    message: Message  # between two stages
    peer: int  # the worker at the other end
    # whether it carries the shapes of the message's tensors, and not the tensors
    is_shape: bool = False

    @property
    def content(self) -> str:
        """What is sent, in words: "F3 for stage 1" is the activation of microbatch 3."""
        letter = "F" if self.message.payload is Payload.ACTIVATION else "B"
        what = f"{letter}{self.message.microbatch} for stage {self.message.stage}"
        return f"the shapes of {what}" if self.is_shape else what

    def __str__(self) -> str:
        direction = "to" if self.way is TransferKind.SEND else "from"
        return f"{self.way.value} {self.content} {direction} worker {self.peer}"


Action = Task | Transfer
"""A task, or one end of a message."""

Group = tuple[Action, ...]
"""Transfers that begin together, and after which a worker goes on together; or one task."""


def alone(actions: Iterable[Action]) -> list[Group]:
    """Return actions that follow one another, each a group of its own."""
    return [(action,) for action in actions]


def grouped(actions: Iterable[Action]) -> list[Group]:
    """Return actions in groups, each of all transfers between two tasks."""
    runs = groupby(actions, lambda action: isinstance(action, Task))
    return [group for are_tasks, run in runs for group in (alone(run) if are_tasks else [(*run,)])]


@dataclass(frozen=True)
class MessageProgram:
    """What every worker calls, in its order."""

    table: Schedule  # of the tasks
    workers: tuple[tuple[Group, ...], ...]  # ``workers[w]`` are the groups of worker ``w``
    policy: str = ""  # by which the messages were put in, for titles only

    @property
    def has_messages(self) -> bool:
        """Whether any worker sends or receives."""
        return any(isinstance(action, Transfer) for _, action in self.actions())

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Yield each worker's actions, one after another, with the worker."""
        for worker, groups in enumerate(self.workers):
            for group in groups:
                for action in group:
                    yield worker, action

    def require_pairs(self) -> None:
        """Raise ScheduleError unless each message that a task needs is sent and received once."""
        called = Counter((w, each) for w, each in self.actions() if isinstance(each, Transfer))
        ends = zip(self.table.dependencies.worker_of, *ends_of(self.table), strict=True)
        wanted = dict.fromkeys((worker, each) for worker, *both in ends for each in chain(*both))
        for worker, transfer in wanted:
            if (worker, transfer) not in called:
                raise ScheduleError(
                    f"worker {worker} never calls {transfer}: give every message that crosses "
                    f"workers one send and one receive"
                )
        for (worker, transfer), times in called.items():
            what = f"worker {worker} calls {transfer.way.value} {transfer.content}"
            if (worker, transfer) not in wanted:
                raise ScheduleError(
                    f"{what}, which no task of the table needs from another worker or sends there"
                )
            if times > 1:
                raise ScheduleError(f"{what} {times} times: once is enough")


def ends_of(table: Schedule) -> tuple[list[list[Transfer]], list[list[Transfer]]]:
    """Return for each task, by its number, what it receives from other workers, and sends them."""
    graph = table.dependencies
    receives, sends = ([list[Transfer]() for _ in graph.tasks] for _ in range(2))
    for number, target in enumerate(graph.target):
        here, there = graph.worker_of[number], graph.worker_of[target]
        message = message_out_of(graph.tasks[number])
        if message and target >= 0 and here != there:
            sends[number].append(Transfer(TransferKind.SEND, message, there))
            receives[target].append(Transfer(TransferKind.RECEIVE, message, here))
    return receives, sends


def message_into(task: Task) -> Message | None:
    """Return the message that a task receives from a neighbouring stage, if it is of a kind."""
    payload = task.op.receives
    return Message(payload, task.stage, task.microbatch) if payload else None


def message_out_of(task: Task) -> Message | None:
    """Return the message that a task sends to a neighbouring stage, likewise."""
    payload = task.op.sends
    return Message(payload, task.stage + payload.step, task.microbatch) if payload else None


POSTED_AHEAD = 4
"""Receives that our engine has posted from each sender (engine/transports/distributed.py)."""


def with_messages(schedule: Schedule, policy: str = "in_order") -> MessageProgram:
    """Return a schedule's tasks with the sends and receives of a framework.

    Tasks of other streams stand in their places and take no time, since they run beside the others;
    what they transfer is no message.

    Args:
        schedule: one that :func:`pipekit.schedules.check` accepts; of one without end as many
            batches as fill the pipeline (:meth:`Schedule.excerpt`).
        policy: "in_order": a worker receives before a task and sends after it.  "batched": as
            "in_order", but a send and the receives behind it are one group, as in Megatron-LM's
            1F1B (``send_forward_recv_backward``).  "torch": a receive stands where its sender has
            come to (torch.distributed.pipelining's ``_add_send_recv``).  "pipekit": our own engine
            over torch.distributed, which posts four receives from each sender ahead.

    Raises:
        ValueError: there is no such policy.
        ScheduleError: the tasks themselves can never finish.
    """
    require_choice("policy", policy, tuple(POLICIES))
    require_kind("schedule", schedule, Schedule, "schedules.flush(4, 8)")
    table = schedule.excerpt()
    Replay(table.dependencies).require_done()
    lists = POLICIES[policy](table)
    return MessageProgram(table, tuple(map(tuple, lists)), policy)


def _in_order(table: Schedule) -> list[list[Group]]:
    graph = table.dependencies
    lists: list[list[Group]] = [[] for _ in table.workers]
    each = zip(graph.tasks, graph.worker_of, *ends_of(table), strict=True)
    for task, worker, receives, sends in each:
        lists[worker] += alone((*receives, task, *sends))
    return lists


def _torch(table: Schedule) -> list[list[Group]]:
    """Let workers go on in turn by one task, or two that run together, with a send behind it.

    The receive goes behind all that its worker has so far, which knows of a message only then.
    Of other streams torch has only what shards weights, and takes a turn for each.
    """
    graph, (_, sends) = table.dependencies, ends_of(table)
    lists: list[list[Group]] = [[] for _ in table.workers]
    position, done = [*graph.first[:-1]], {NOTHING}
    beside = {op for op in graph.ops if op.stream}.difference((GATHER, DISCARD, SUM))
    while position != graph.first[1:]:
        for worker, number in enumerate(position):
            if number == graph.first[worker + 1]:
                continue
            stop = number + 1 + (graph.partner[number] > number)
            while stop < graph.first[worker + 1] and graph.tasks[stop].op in beside:
                stop += 1
            both = range(number, stop)
            if not done.issuperset(graph.source[each] for each in both):
                continue
            lists[worker] += alone(graph.tasks[each] for each in both)
            for send in chain(*(sends[each] for each in both)):
                lists[worker].append((send,))
                lists[send.peer].append((send._replace(way=TransferKind.RECEIVE, peer=worker),))
            done.update(both)
            position[worker] += len(both)
    return lists


def _pipekit(table: Schedule) -> list[list[Group]]:
    """Post receives in their senders' order, each four messages before its task needs it."""
    graph, (receives, sends) = table.dependencies, ends_of(table)
    sent: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    place: dict[Transfer, int] = {}
    for worker, each in zip(graph.worker_of, sends, strict=True):
        for send in each:
            link, receive = (
                (worker, send.peer),
                send._replace(way=TransferKind.RECEIVE, peer=worker),
            )
            place[receive] = len(sent[link])
            sent[link].append(receive)
    lists: list[list[Group]] = [[] for _ in table.workers]
    posted: dict[tuple[int, int], int] = defaultdict(int)
    for number, (task, worker) in enumerate(zip(graph.tasks, graph.worker_of, strict=True)):
        for receive in receives[number]:
            link = receive.peer, worker
            stop = max(posted[link], place[receive] + POSTED_AHEAD)
            lists[worker] += alone(sent[link][posted[link] : stop])
            posted[link] = stop
        lists[worker] += alone((task, *sends[number]))
    return lists


POLICIES: Mapping[str, Callable[[Schedule], Sequence[Sequence[Group]]]] = {
    "in_order": _in_order,
    "batched": lambda table: [grouped(chain(*groups)) for groups in _in_order(table)],
    "torch": _torch,
    "pipekit": _pipekit,
}
"""The named orders; see :func:`with_messages`."""
