"""A table with its messages: each worker's tasks, sends and receives, in the order of its calls.

A table leaves the order of messages open, since they follow from its tasks.  A framework decides
it, and so decides whether workers can come to wait for one another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple

from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.ops import Payload
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task


class TransferKind(Enum):
    """Which end of a message a worker has."""

    SEND = "send"
    RECEIVE = "receive"


class Transfer(NamedTuple):
    """A worker's call to send a message or to receive it.

    Attributes:
        way: which of both.
        message: between two stages.
        peer: the worker at the other end.
        is_shape: whether it carries the shapes of the message's tensors, and not the tensors.
    """

    way: TransferKind
    message: Message
    peer: int
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


@dataclass(frozen=True)
class MessageProgram:
    """What every worker calls, in its order.

    Attributes:
        table: of the tasks.
        workers: ``workers[w]`` are the groups of worker ``w``.
        policy: by which the messages were put in, for titles only.
    """

    table: Schedule
    workers: tuple[tuple[Group, ...], ...]
    policy: str = ""

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
        called: dict[tuple[TransferKind, Message], int] = {}
        for worker, action in self.actions():
            if isinstance(action, Transfer) and not action.is_shape:
                key = action.way, action.message
                if key in called:
                    raise ScheduleError(f"worker {worker} calls {action} a second time")
                called[key] = worker
        whose = self.table.dependencies.worker_of
        ends = zip(whose, sends_of(self.table), receives_of(self.table), strict=True)
        wanted = {
            (transfer.way, transfer.message): (worker, transfer)
            for worker, *both in ends
            for transfer in chain(*both)
        }
        for key, (worker, transfer) in wanted.items():
            if called.get(key) != worker:
                raise ScheduleError(
                    f"worker {worker} never calls {transfer}: give every message that crosses "
                    f"workers one send and one receive"
                )
        for (way, message), worker in called.items():
            if (way, message) not in wanted:
                raise ScheduleError(
                    f"worker {worker} calls {way.value} for {Transfer(way, message, -1).content}, "
                    f"which no task of the table needs from another worker"
                )


def sends_of(table: Schedule) -> list[list[Transfer]]:
    """Return for each task, by its number, what is sent after it."""
    graph = table.dependencies
    found: list[list[Transfer]] = []
    for number, target in enumerate(graph.target):
        message, peer = message_out_of(graph.tasks[number]), graph.worker_of[target]
        stays = target < 0 or peer == graph.worker_of[number]
        found.append([Transfer(TransferKind.SEND, message, peer)] if message and not stays else [])
    return found


def receives_of(table: Schedule) -> list[list[Transfer]]:
    """Return for each task, by its number, what it receives from another worker."""
    graph = table.dependencies
    found: list[list[Transfer]] = [[] for _ in graph.tasks]
    for number, sends in enumerate(sends_of(table)):
        for send in sends:
            peer = graph.worker_of[number]
            found[graph.target[number]].append(send._replace(way=TransferKind.RECEIVE, peer=peer))
    return found


def message_into(task: Task) -> Message | None:
    """Return the message that a task receives from a neighbouring stage, if it is of a kind."""
    payload = task.op.receives
    return Message(payload, task.stage, task.microbatch) if payload else None


def message_out_of(task: Task) -> Message | None:
    """Return the message that a task sends to a neighbouring stage, likewise."""
    payload = task.op.sends
    return Message(payload, task.stage + payload.step, task.microbatch) if payload else None
