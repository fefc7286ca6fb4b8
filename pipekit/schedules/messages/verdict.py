"""Whether a program hangs on a channel, and what its order of messages costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter

from pipekit.schedules.clock import PAPER_SLOTS, Replay, Walk, graph_needs
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.messages.channel import MessageChannel
from pipekit.schedules.messages.events import Events
from pipekit.schedules.messages.program import (
    Action,
    MessageProgram,
    Transfer,
    TransferKind,
    message_out_of,
)
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import Task


@dataclass(frozen=True)
class MessageVerdict:
    """What becomes of a program on a channel.

    Attributes:
        program: of the workers.
        channel: between them.
        least: slots of the tasks if nothing waits for a message but the task that needs it.
        events: of the program on the channel.
        mixed_up: a sentence that says which message is received as another; empty if none is.
        slots: until everything has ended; None if that never is.
        late: the send that begins longest after its data is there, since others are before it, with
            its worker; None if none does.
        late_slots: by how much.
    """

    program: MessageProgram
    channel: MessageChannel
    least: float
    events: Events = field(repr=False, compare=False)
    mixed_up: str = ""
    slots: float | None = None
    late: tuple[int, Transfer] | None = None
    late_slots: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether all ends, for all timings, and each message is received as itself."""
        return self.slots is not None

    @cached_property
    def cycle(self) -> tuple[tuple[int, Action], ...]:
        """The fewest actions that wait for one another, each with its worker; empty if none do."""
        if self.mixed_up:
            return ()
        actions = dict.fromkeys(event // 2 for event in self.events.circle)
        return tuple((self.events.worker_of[each], self.events.actions[each]) for each in actions)

    def __str__(self) -> str:
        order = f"the order {self.program.policy!r}" if self.program.policy else "this order"
        if self.mixed_up:
            return f"{order} mixes up messages ({self.channel}): {self.mixed_up}"
        if self.slots is None:
            return f"{order} hangs ({self.channel}): {_in_words(self.cycle)}"
        text = f"{order} never hangs, for all timings ({self.channel}): {self.slots:g} slots, "
        if self.slots <= self.least:
            return f"{text}the least that any channel takes"
        text += f"{self.slots / self.least - 1:.1%} more than if no message stood behind another"
        if self.late:
            worker, send = self.late
            text += f"; worker {worker}'s {send} begins {self.late_slots:g} slots late"
        return text


def check_messages(
    program: MessageProgram,
    channel: MessageChannel,
    durations: Mapping[Op, float] = PAPER_SLOTS,
    link: float = 0.0,
) -> MessageVerdict:
    """Prove that workers never come to wait for one another, or name the fewest that do.

    Each call of a worker waits for all of what it needs, so that the proof holds for all durations;
    those given only tell what the order costs.

    Args:
        program: of :func:`with_messages`, or read by :func:`read_torch_comms`.
        channel: between the workers.
        durations: slots of each op; those that are not named are of :data:`PAPER_SLOTS`.
        link: slots that a message takes.

    Raises:
        ScheduleError: the tasks themselves can never finish, or a message that one of them needs is
            not sent and received once.
    """

    def lasting(each: Task | Message) -> float:
        return each.op.slots_in(durations) if isinstance(each, Task) else link

    events = Events(program, channel, lasting)
    least = max(replayed(program.table, durations, link).ends)
    times = [time for time in events.over if time is not None]
    if events.mixed_up or len(times) < len(events.over):
        return MessageVerdict(program, channel, least, events, events.mixed_up)
    late, late_slots = _latest(events)
    slots = max(times, default=0.0)
    return MessageVerdict(program, channel, least, events, "", slots, late, late_slots)


def replayed(table: Schedule, durations: Mapping[Op, float], link: float) -> Walk:
    """Return the clock of a table in which nothing waits for messages but the tasks that do.

    Args:
        table: the tasks.
        durations: slots of each op; those that are not named are its own.
        link: slots that a message from another worker takes.
    """
    graph = table.dependencies
    needs = graph_needs(graph)
    for number, source in enumerate(graph.source):
        if source >= 0 and graph.worker_of[source] != graph.worker_of[number]:
            needs[number] = tuple(
                (need, link if need == source else delay) for need, delay in needs[number]
            )
    seconds = [op.slots_in(durations) for op, *_ in graph.tasks]
    clock = Walk([range(*each) for each in pairwise(graph.first)], seconds, needs).run()
    if not clock.is_done:
        Replay(graph).require_done()  # says who waits for whom
    return clock


def _latest(events: Events) -> tuple[tuple[int, Transfer] | None, float]:
    """Return the send that begins longest after the task that gives its data, and by how much."""
    actions = [*zip(events.worker_of, events.actions, strict=True)]
    ended = {
        (worker, message_out_of(action)): events.over[2 * number + 1]
        for number, (worker, action) in enumerate(actions)
        if isinstance(action, Task)
    }
    late, most = None, 0.0
    for number, (worker, action) in enumerate(actions):
        if isinstance(action, Transfer) and action.way is TransferKind.SEND:
            begin, data = events.over[2 * number], ended[worker, action.message]
            assert begin is not None
            assert data is not None
            if begin - data > most:
                late, most = (worker, action), begin - data
    return late, most


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
