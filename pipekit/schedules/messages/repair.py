"""An order of messages that is proved, for a table whose order hangs."""

from collections.abc import Mapping
from itertools import groupby, product
from typing import Any

from pipekit.schedules.clock import PAPER_SLOTS, Walk
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.messages.channel import MessageChannel
from pipekit.schedules.messages.program import (
    Action,
    Group,
    MessageProgram,
    Transfer,
    alone,
    message_into,
    message_out_of,
)
from pipekit.schedules.messages.verdict import MessageVerdict, check_messages, replayed
from pipekit.schedules.ops import Op
from pipekit.schedules.task import ScheduleError, Task


def repair(
    program: MessageProgram,
    channel: MessageChannel,
    durations: Mapping[Op, float] = PAPER_SLOTS,
    link: float = 0.0,
) -> MessageVerdict:
    """Return the verdict on the best of some orders: the given one, and four that never hang.

    In these four all workers call their transfers in the order of one list of all messages, so that
    the first message that is not through can always go on.  The list has each message where it is
    sent, or where it is needed, in a replay in which nothing waits for messages; what a worker
    calls between two tasks is one group, or one call after another.

    Returns:
        The verdict on the order with the fewest slots; ``verdict.program`` is the order, and
        ``verdict.slots / verdict.least`` says how far at most it is from the best.

    Raises:
        ScheduleError: none of them is sound on this channel.
    """
    clock = replayed(program.table, durations, link)
    orders = [program]
    for late, grouped in product((False, True), repeat=2):
        orders.append(_in_one_order(program, clock, late, grouped))
    tried = [check_messages(order, channel, durations, link) for order in orders]
    sound = [verdict for verdict in tried if verdict.slots is not None]
    if not sound:
        raise ScheduleError(f"no order was found that never hangs: {tried[-1]}")
    return min(sound, key=lambda verdict: verdict.slots or 0.0)


def _in_one_order(
    program: MessageProgram, clock: Walk, late: bool, grouped: bool
) -> MessageProgram:
    """Return a program whose workers all call their transfers in one order.

    Args:
        program: the tasks and messages.
        clock: of a replay in which nothing waits for messages.
        late: whether a message stands before the task that needs it, else behind its sender.
        grouped: whether transfers between two tasks are one group.
    """
    tasks = program.table.dependencies.tasks
    place: dict[Task | Message | None, tuple[Any, ...]] = {}
    for position, number in enumerate(clock.sequence):
        task, start = tasks[number], clock.starts[number]
        place[task] = own = start, 1, position
        if late:
            place[message_into(task)] = start, 0, position
        else:
            place[message_out_of(task)] = max((clock.ends[number], 0, position), (*own, 1))

    def key(action: Action) -> tuple[Any, ...]:
        return place[action.message if isinstance(action, Transfer) else action]

    workers: list[tuple[Group, ...]] = []
    for each in program.workers:
        actions = sorted((action for group in each for action in group), key=key)
        groups: list[Group] = []
        for are_tasks, run in groupby(actions, lambda action: isinstance(action, Task)):
            between = [*run]
            groups += [tuple(between)] if grouped and not are_tasks else alone(between)
        workers.append(tuple(groups))
    return MessageProgram(program.table, tuple(workers), "repaired")
