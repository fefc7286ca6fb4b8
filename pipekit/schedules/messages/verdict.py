"""Whether a program hangs on a channel, what its order of messages costs, and a better order."""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, groupby, product
from operator import itemgetter
from typing import Any

from pipekit.schedules.clock import Walk, graph_needs
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.messages.channel import Events, MessageChannel
from pipekit.schedules.messages.program import (
    Action,
    Group,
    MessageProgram,
    Transfer,
    alone,
    grouped,
    message_into,
    message_out_of,
)
from pipekit.schedules.replay import timed
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError
from pipekit.units import require_amount


@dataclass(frozen=True)
class MessageVerdict:
    """What becomes of a ``program`` on a ``channel``, by its ``events``.

    ``least`` are the slots of the tasks if nothing waits for a message but the task that needs it.
    """

    program: MessageProgram
    channel: MessageChannel
    least: float
    events: Events = field(repr=False, compare=False)

    @property
    def mixed_up(self) -> str:
        """A sentence that says which message is received as another; empty if none is."""
        return self.events.mixed_up

    @property
    def is_sound(self) -> bool:
        """Whether all ends, for all timings, and each message is received as itself."""
        return not self.mixed_up and None not in self.events.over

    @property
    def slots(self) -> float | None:
        """Slots until everything has ended; None if that never is."""
        times = (time for time in self.events.over if time is not None)
        return max(times, default=0.0) if self.is_sound else None

    @cached_property
    def cycle(self) -> tuple[tuple[int, Action], ...]:
        """The fewest actions that wait for one another, each with its worker; empty if none do."""
        if self.mixed_up:
            return ()
        actions = dict.fromkeys(event // 2 for event in self.events.circle)
        return tuple((self.events.worker_of[each], self.events.actions[each]) for each in actions)

    @property
    def late(self) -> tuple[float, str]:
        """The most slots that a send begins after its data is there, and which does, in words."""
        events, late, which = self.events, 0.0, ""
        for number, output in events.outputs.items():
            begin, data = events.over[2 * number], events.over[output]
            if begin is not None and data is not None and begin - data > late:
                late = begin - data
                which = f"worker {events.worker_of[number]}'s {events.actions[number]}"
        return late, which

    def __repr__(self) -> str:
        order = f"the order {self.program.policy!r}" if self.program.policy else "this order"
        if self.mixed_up:
            return f"{order} mixes up messages ({self.channel}): {self.mixed_up}"
        if self.slots is None:
            return f"{order} hangs ({self.channel}): {_in_words(self.cycle)}"
        text = f"{order} never hangs, for all timings ({self.channel}): {self.slots:g} slots, "
        if self.slots <= self.least:
            return f"{text}the least that any channel takes"
        text += f"{self.slots / self.least - 1:.1%} more than if no message stood behind another"
        late, which = self.late
        return f"{text}; {which} begins {late:g} slots late" if late else text


def check_messages(
    program: MessageProgram, channel: MessageChannel, link: float = 0.0
) -> MessageVerdict:
    """Prove that workers never come to wait for one another, or name the fewest that do.

    Each call of a worker waits for all of what it needs, so that the proof holds however long
    anything takes; each op's own slots, and those of a message (``link``), only tell what the order
    costs.  The ``program`` is of :func:`with_messages`, or read by :func:`read_torch_comms`; the
    ``channel`` is between its workers.

    Raises:
        ScheduleError: the tasks themselves can never finish, or a message that one of them needs is
            not sent and received once.
        ValueError: ``link`` is negative or not finite.
    """
    least = max(replayed(program.table, link).ends)
    return MessageVerdict(program, channel, least, Events(program, channel, link))


def replayed(table: Schedule, link: float) -> Walk:
    """Return the clock of a table in which only tasks wait for messages, of ``link`` slots."""
    require_amount("link", link)
    graph = table.dependencies
    needs = graph_needs(graph)
    for number, source in enumerate(graph.source):
        if source >= 0 and graph.worker_of[source] != graph.worker_of[number]:
            needs[number] = tuple(
                (need, link if need == source else delay) for need, delay in needs[number]
            )
    return timed(graph, [0 if op.stream else op.slots for op, *_ in graph.tasks], needs)


def _in_words(cycle: tuple[tuple[int, Action], ...]) -> str:
    """Say who waits for whom: of each worker the call that waits, and the one that it is before."""
    turns = [n for n, (worker, _) in enumerate(cycle) if worker != cycle[n - 1][0]]
    if not turns:
        (worker, action), (_, needed) = cycle[0], cycle[-1]
        return f"worker {worker}'s {action} needs its {needed}, which it calls later"
    rounded = cycle[turns[0] :] + cycle[: turns[0]]
    runs = [[*run] for _, run in groupby(rounded, key=itemgetter(0))]
    stays = [f"worker {run[0][0]}'s {run[0][1]}" for run in runs]
    for number, run in enumerate(runs):
        if len(run) > 1:
            stays[number] += f", which comes after its {run[-1][1]}"
    return "; that waits for ".join([*stays, f"worker {runs[0][0][0]}'s {runs[0][0][1]}"])


def repair(program: MessageProgram, channel: MessageChannel, link: float = 0.0) -> MessageVerdict:
    """Return the verdict on the best of some orders: the given one, and four that never hang.

    In these four all workers call their transfers in the order of one list of all messages, so that
    the first message that is not through can always go on.  The list has each message where it is
    sent, or where it is needed, in a replay in which nothing waits for messages; what a worker
    calls between two tasks is one group, or one call after another.  The order is
    ``verdict.program``, and ``verdict.slots / verdict.least`` says how far at most it is from the
    best.

    Raises:
        ScheduleError: none of them is sound on this channel.
    """
    clock = replayed(program.table, link)
    orders = [program]
    for late, in_groups in product((False, True), repeat=2):
        orders.append(_in_one_order(program, clock, late, in_groups))
    tried = [check_messages(order, channel, link) for order in orders]
    sound = [verdict for verdict in tried if verdict.slots is not None]
    if not sound:
        raise ScheduleError(f"no order was found that never hangs: {tried[-1]}")
    return min(sound, key=lambda verdict: verdict.slots or 0.0)


def _in_one_order(
    program: MessageProgram, clock: Walk, late: bool, in_groups: bool
) -> MessageProgram:
    """Return a program whose workers all call their transfers in one order.

    A message stands before the task that needs it if ``late``, else behind its sender.
    """
    graph = program.table.dependencies
    place: dict[int | Message | None, tuple[Any, ...]] = {}  # of a task by its number
    for position, number in enumerate(clock.sequence):
        task, start = graph.tasks[number], clock.starts[number]
        place[number] = own = start, 1, position
        if late:
            place[message_into(task)] = start, 0, position
        else:
            place[message_out_of(task)] = max((clock.ends[number], 0, position), (*own, 1))
    for number in graph.of(lambda op: op.stream):  # these stay behind the task before them
        place[number] = () if number in graph.first else place[number - 1]
    workers: list[tuple[Group, ...]] = []
    for first, groups in zip(graph.first, program.workers, strict=False):
        numbers = count(first)
        keyed = [
            (place[each.message if isinstance(each, Transfer) else next(numbers)], each)
            for each in chain(*groups)
        ]
        actions = [action for _, action in sorted(keyed, key=itemgetter(0))]
        workers.append(tuple(grouped(actions) if in_groups else alone(actions)))
    return MessageProgram(program.table, tuple(workers), "repaired")
