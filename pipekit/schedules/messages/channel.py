"""How messages behave on a channel: what a worker waits for, and what waits behind what.

:class:`Events` are the begin and the end of every action, and what must be over before.  An event
waits for all that it needs, never for one of several things: a circle is a deadlock for all
timings, and without one there is none for any.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from numbers import Real
from typing import Any

from pipekit.choices import require_choice
from pipekit.schedules.lowering.steps import Message
from pipekit.schedules.messages.program import (
    Action,
    Group,
    MessageProgram,
    Transfer,
    TransferKind,
    message_into,
    message_out_of,
)
from pipekit.schedules.task import Task

COMMUNICATORS = "worker", "pair", "direction"
_WRITTEN = re.compile(r"(rendezvous|eager)(?::(\d{1,9}))?$")


@dataclass(frozen=True)
class MessageChannel:
    """The semantics of a channel.

    Attributes:
        buffers: messages from one worker to another that may be under way before the first of them
            is received; 0: a send ends with its receive (rendezvous).
        waits: whether a worker goes on only when its transfers have ended, as after a blocking
            call.  Otherwise they run beside its tasks, and a task waits for what it needs.
        communicators: transfers of one communicator follow one another in the order of their
            calls, unless they are one group: a "direction" of two workers, a "pair", as in NCCL, or
            all of a "worker", as torch's ``batch_isend_irecv`` runs them.
        shapes_first: whether the shapes of each group's tensors are exchanged before them, by calls
            that wait, as Megatron's for sequences of variable length.
    """

    buffers: float = 0
    waits: bool = True
    communicators: str = "direction"
    shapes_first: bool = False

    def __post_init__(self) -> None:
        require_choice("communicators", self.communicators, COMMUNICATORS)
        number = self.buffers if isinstance(self.buffers, Real) else -1
        if not number >= 0 or number not in (math.inf, number // 1):
            raise ValueError(
                f"buffers must be a whole number of at least 0, not {self.buffers!r}: 0 is a "
                f"rendezvous, and MessageChannel.parse reads words"
            )

    @classmethod
    def parse(cls, written: str, **how: Any) -> "MessageChannel":
        """Return a channel by its words: "rendezvous", "eager" (without bound) or "eager:2".

        ``how`` has its other attributes.  Raises ValueError for other words.
        """
        found = _WRITTEN.match(written)
        if not found or (found[1] == "rendezvous" and found[2]):
            raise ValueError(
                f"{written!r} is not a channel: write rendezvous, eager, or eager:2 for two buffers"
            )
        buffers = 0 if found[1] == "rendezvous" else float(found[2] or math.inf)
        return cls(buffers, **how)

    def lane(self, worker: int, peer: int, sends: bool) -> tuple[int, ...]:
        """Return the communicator of a worker's transfer."""
        if self.communicators == "worker":
            return (worker,)
        if self.communicators == "pair":
            return min(worker, peer), max(worker, peer)
        return (worker, peer) if sends else (peer, worker)

    def __str__(self) -> str:
        size = "" if math.isinf(self.buffers) else f":{self.buffers:g}"
        words = ["rendezvous" if self.buffers == 0 else f"eager{size}"]
        words += [] if self.waits else ["without waiting"]
        words += [f"a communicator a {self.communicators}"]
        words += ["shapes first"] if self.shapes_first else []
        return ", ".join(words)


class Events:
    """The events of a program on a channel: action ``n`` begins as event 2n, and ends as 2n + 1.

    Attributes:
        actions: of all workers, by number.
        worker_of: whose each is.
        needs: for each event those that must be over, each with how many slots before.
        outputs: for each send the event of its data.
        over: when each event is over, the first one at 0; None for those that never are.
        mixed_up: a sentence that says which message is received as another; empty: none is.
    """

    def __init__(self, program: MessageProgram, channel: MessageChannel, link: float) -> None:
        program.require_pairs()
        self.actions: list[Action] = []
        self.worker_of: list[int] = []
        self.needs: list[dict[int, float]] = []
        self.outputs: dict[int, int] = {}
        self.mixed_up = ""
        for worker, groups in enumerate(program.workers):
            self._follow(worker, groups, channel)
        self._join(channel, link)
        self.over: list[float | None] = [None] * len(self.needs)
        self._run()

    @cached_property
    def circle(self) -> list[int]:
        """The fewest events of which each waits for the next, and the last for the first."""
        caught = {event for event, time in enumerate(self.over) if time is None}
        found, most = list[int](), 8
        while caught and not found:  # most circles are short: look for long ones only then
            for event in sorted(caught):
                found = self._way_back(event, caught, len(found) or most) or found
            most *= 2
        return found

    def _follow(self, worker: int, groups: Iterable[Group], channel: MessageChannel) -> None:
        """Add a worker's actions, in the order of its calls and of its communicators."""
        before: list[int] = []  # what has to be over before the worker makes its next call
        last: dict[tuple[int, ...], list[int]] = {}  # of each communicator, the group before
        for group in _with_shapes(groups) if channel.shapes_first else groups:
            waits_for: list[int] = []
            running: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for action in group:
                end = len(self.needs) + 1
                self.actions.append(action)
                self.worker_of.append(worker)
                begins_after = dict.fromkeys(before, 0.0)
                takes = 0.0
                if isinstance(action, Transfer):
                    lane = channel.lane(worker, action.peer, action.way is TransferKind.SEND)
                    begins_after |= dict.fromkeys(last.get(lane, ()), 0.0)
                    running[lane].append(end)
                elif not action.op.stream:
                    takes = float(action.op.slots)
                if isinstance(action, Task) or channel.waits or action.is_shape:
                    waits_for.append(end)
                self.needs += [begins_after, {end - 1: takes}]
            last |= running
            before = waits_for or before

    def _join(self, channel: MessageChannel, link: float) -> None:
        """Let tasks wait for messages, receives for sends, and sends for room and for data."""
        each = [*zip(range(len(self.actions)), self.worker_of, self.actions, strict=True)]
        tasks = [(number, worker, one) for number, worker, one in each if isinstance(one, Task)]
        outputs = {message_out_of(task): 2 * number + 1 for number, _, task in tasks}
        arrivals: dict[tuple[int, Message | None], int] = {}
        sent, received = (defaultdict[tuple[int, int], list[int]](list) for _ in range(2))
        for number, worker, action in each:
            if isinstance(action, Task):
                continue
            if action.way is TransferKind.SEND:
                sent[worker, action.peer].append(number)
                self.outputs[number] = outputs[action.message]
                self.needs[2 * number][outputs[action.message]] = 0.0
            else:
                received[action.peer, worker].append(number)
                if not action.is_shape:
                    arrivals[worker, action.message] = 2 * number + 1
        for number, worker, task in tasks:
            arrival = arrivals.get((worker, message_into(task)))
            if arrival is not None:
                self.needs[2 * number][arrival] = 0.0
        for ends, sends in sent.items():
            for position, (send, receive) in enumerate(zip(sends, received[ends], strict=True)):
                one, other = self.actions[send], self.actions[receive]
                assert isinstance(one, Transfer)
                assert isinstance(other, Transfer)
                if (one.message, one.is_shape) != (other.message, other.is_shape):
                    self.mixed_up = self.mixed_up or (
                        f"worker {self.worker_of[send]} sends {one.content} where worker "
                        f"{one.peer} receives {other.content}: messages arrive in the order of "
                        f"their sends"
                    )
                takes = 0.0 if one.is_shape else link
                if channel.buffers == 0:
                    both = {2 * send: takes, 2 * receive: takes}
                    self.needs[2 * send + 1], self.needs[2 * receive + 1] = both, {**both}
                    continue
                self.needs[2 * receive + 1][2 * send + 1] = takes
                if position >= channel.buffers:
                    room = received[ends][position - int(channel.buffers)]
                    self.needs[2 * send + 1][2 * room + 1] = 0.0

    def _run(self) -> None:
        order = TopologicalSorter(dict(enumerate(self.needs)))
        with suppress(CycleError):  # what waits for no circle can go on
            order.prepare()
        times = [0.0] * len(self.needs)
        while ready := order.get_ready():
            for event in ready:
                each = (times[need] + takes for need, takes in self.needs[event].items())
                self.over[event] = times[event] = max(each, default=0.0)
            order.done(*ready)

    def _way_back(self, event: int, among: set[int], shorter_than: int) -> list[int]:
        """Return the shortest way from an event over what it waits for to itself, if short."""
        ways, seen = deque[tuple[int, ...]]([(event,)]), {event}
        while ways and len(way := ways.popleft()) < shorter_than:
            for need in self.needs[way[-1]]:
                if need == event:
                    return [*way]
                if need in among and need not in seen:
                    seen.add(need)
                    ways.append((*way, need))
        return []


def _with_shapes(groups: Iterable[Group]) -> Iterable[Group]:
    """Yield groups, each group of transfers behind one that exchanges its shapes."""
    for group in groups:
        transfers = [action for action in group if isinstance(action, Transfer)]
        if transfers:
            yield tuple(transfer._replace(is_shape=True) for transfer in transfers)
        yield group
