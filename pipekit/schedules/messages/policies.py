"""Where messages stand between the tasks of a table: the orders of frameworks, by name."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby

from pipekit.choices import require_choice
from pipekit.schedules.clock import Replay
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.messages.program import (
    Group,
    MessageProgram,
    Transfer,
    TransferKind,
    alone,
    receives_of,
    sends_of,
)
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task

POSTED_AHEAD = 4
"""Receives that our engine has posted from each sender (engine/transports/distributed.py)."""


def with_messages(
    schedule: Schedule, policy: str = "in_order", batches: int | None = None
) -> MessageProgram:
    """Return a schedule's tasks with the sends and receives of a framework.

    Args:
        schedule: one that :func:`pipekit.schedules.check` accepts.
        policy: "in_order": a worker receives before a task and sends after it.  "batched": as
            "in_order", but a send and the receives behind it are one group, as in Megatron-LM's
            1F1B (``send_forward_recv_backward``).  "torch": a receive stands where its sender has
            come to (torch.distributed.pipelining's ``_add_send_recv``).  "pipekit": our own engine
            over torch.distributed, which posts four receives from each sender ahead.
            Tasks of other streams are left out: they exchange no activations and gradients.
        batches: of the schedule; None: as many as fill the pipeline (:meth:`Schedule.excerpt`).

    Raises:
        ValueError: there is no such policy.
        ScheduleError: the tasks themselves can never finish.
    """
    require_choice("policy", policy, tuple(POLICIES))
    table = schedule.excerpt(batches)
    Replay(table.dependencies).require_done()
    if table.dependencies.of(lambda op: op.stream):
        own = (tuple(t for t in tasks if not t.op.stream) for tasks in table.workers)
        table = replace(table, head=tuple(own))
    lists = POLICIES[policy](table)
    return MessageProgram(table, tuple(map(tuple, lists)), policy)


def _in_order(table: Schedule) -> list[list[Group]]:
    graph = table.dependencies
    lists: list[list[Group]] = [[] for _ in table.workers]
    both = zip(graph.tasks, graph.worker_of, receives_of(table), sends_of(table), strict=True)
    for task, worker, receives, sends in both:
        lists[worker] += alone((*receives, task, *sends))
    return lists


def _batched(table: Schedule) -> list[list[Group]]:
    lists: list[list[Group]] = []
    for groups in _in_order(table):
        runs = groupby(chain(*groups), lambda action: isinstance(action, Task))
        grouped: list[Group] = []
        for are_tasks, run in runs:
            grouped += alone(run) if are_tasks else [tuple(run)]
        lists.append(grouped)
    return lists


def _torch(table: Schedule) -> list[list[Group]]:
    """Let workers go on in turn by one task, each with a send behind it.

    The receive goes behind all that its worker has so far, which knows of a message only from then
    on.  Tasks that run together are one.
    """
    graph, sends = table.dependencies, sends_of(table)
    lists: list[list[Group]] = [[] for _ in table.workers]
    position, done = [*graph.first[:-1]], {NOTHING}
    while position != graph.first[1:]:
        for worker, number in enumerate(position):
            if number == graph.first[worker + 1]:
                continue
            both = [number, number + 1] if graph.partner[number] > number else [number]
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
    graph, sends, receives = table.dependencies, sends_of(table), receives_of(table)
    sent: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for worker, each in zip(graph.worker_of, sends, strict=True):
        for send in each:
            sent[worker, send.peer].append(send._replace(way=TransferKind.RECEIVE, peer=worker))
    lists: list[list[Group]] = [[] for _ in table.workers]
    posted: dict[tuple[int, int], int] = defaultdict(int)
    for number, (task, worker) in enumerate(zip(graph.tasks, graph.worker_of, strict=True)):
        for receive in receives[number]:
            link = receive.peer, worker
            stop = max(posted[link], sent[link].index(receive) + POSTED_AHEAD)
            lists[worker] += alone(sent[link][posted[link] : stop])
            posted[link] = stop
        lists[worker] += alone((task, *sends[number]))
    return lists


POLICIES: Mapping[str, Callable[[Schedule], Sequence[Sequence[Group]]]] = {
    "in_order": _in_order,
    "batched": _batched,
    "torch": _torch,
    "pipekit": _pipekit,
}
"""The named orders; see :func:`with_messages`."""
