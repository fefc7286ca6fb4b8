"""A judge of programs: it tries every interleaving of their calls, state by state."""

from collections import defaultdict
from collections.abc import Iterator

from pipekit.schedules import Message, Task
from pipekit.schedules.messages import MessageChannel, MessageProgram, Transfer, TransferKind

Member = tuple[int, int, int]
"""A worker, its group and the place in it."""
State = tuple[tuple[int, ...], frozenset[Member]]
"""Which group each worker calls next, and what has ended."""


class Explorer:
    """Calls of groups by workers, and ends of transfers, in every order in which they can come."""

    def __init__(self, program: MessageProgram, channel: MessageChannel) -> None:
        self.groups, self.channel = program.workers, channel
        self.number: dict[Member, int] = {}  # of a transfer among those of its way and direction
        self.ends: dict[tuple[int, int, int, TransferKind], Member] = {}
        counts: dict[tuple[int, int, TransferKind], int] = defaultdict(int)
        for member, action in self._members():
            if isinstance(action, Transfer):
                worker = member[0]
                sends = action.way is TransferKind.SEND
                link = (worker, action.peer) if sends else (action.peer, worker)
                key = *link, action.way
                self.number[member] = counts[key]
                self.ends[*link, counts[key], action.way] = member
                counts[key] += 1

    def outcomes(self) -> set[bool]:
        """Return in which ways all can come to rest: everything has ended, or not."""
        first: State = (0,) * len(self.groups), frozenset()
        seen, stack, found = {first}, [first], set()
        while stack:
            state = stack.pop()
            following = [*self._following(state)]
            if not following:
                found.add(len(state[1]) == sum(1 for _ in self._members()))
            for each in following:
                if each not in seen:
                    seen.add(each)
                    stack.append(each)
        return found

    def _members(self) -> Iterator[tuple[Member, Task | Transfer]]:
        for worker, groups in enumerate(self.groups):
            for place, group in enumerate(groups):
                for position, action in enumerate(group):
                    yield (worker, place, position), action

    def _transfer(self, member: Member) -> Transfer:
        worker, group, position = member
        transfer = self.groups[worker][group][position]
        assert isinstance(transfer, Transfer)
        return transfer

    def _following(self, state: State) -> Iterator[State]:
        called, ended = state
        for worker, following in enumerate(called):
            if following < len(self.groups[worker]) and self._can_call(worker, following, ended):
                after = (*called[:worker], following + 1, *called[worker + 1 :])
                task = self.groups[worker][following][0]
                done = {(worker, following, 0)} if isinstance(task, Task) else set()
                yield after, ended | done
        for member in self.number:
            if self._is_active(member, state) and (gone := self._can_end(member, state)):
                yield called, ended | gone

    def _can_call(self, worker: int, group: int, ended: frozenset[Member]) -> bool:
        """Return whether a worker has come to a group, and the group's task has its data."""
        action = self.groups[worker][group][0]
        if self.channel.waits and group:
            before = self.groups[worker][group - 1]
            if any((worker, group - 1, n) not in ended for n in range(len(before))):
                return False
        if not isinstance(action, Task) or (payload := action.op.receives) is None:
            return True
        wanted = Message(payload, action.stage, action.microbatch)
        return all(
            member in ended
            for member, each in self._members()
            if member[0] == worker
            and isinstance(each, Transfer)
            and (each.way, each.message) == (TransferKind.RECEIVE, wanted)
        )

    def _is_active(self, member: Member, state: State) -> bool:
        """Return whether a transfer is called, has its data, and comes first on its lane."""
        called, ended = state
        worker, group, _ = member
        action = self._transfer(member)
        if member in ended or called[worker] <= group:
            return False
        if action.way is TransferKind.SEND:
            payload, stage, microbatch, *_ = action.message
            for each, task in self._members():
                if (
                    isinstance(task, Task)
                    and task.op.sends is payload
                    and (task.stage + payload.step, task.microbatch) == (stage, microbatch)
                    and each not in ended
                ):
                    return False
        lane = self._lane(member)
        return all(
            each in ended or self._lane(each) != lane
            for each in self.number
            if each[0] == worker and each[1] < group
        )

    def _lane(self, member: Member) -> tuple[int, ...]:
        action, worker = self._transfer(member), member[0]
        both = (worker, action.peer) if action.way is TransferKind.SEND else (action.peer, worker)
        return {"worker": (worker,), "pair": tuple(sorted(both)), "direction": both}[
            self.channel.communicators
        ]

    def _can_end(self, member: Member, state: State) -> set[Member]:
        """Return what ends together with an active transfer; nothing if it cannot end."""
        _, ended = state
        action, worker, number = self._transfer(member), member[0], self.number[member]
        sends = action.way is TransferKind.SEND
        link = (worker, action.peer) if sends else (action.peer, worker)
        other = self.ends[*link, number, TransferKind.RECEIVE if sends else TransferKind.SEND]
        if self.channel.buffers == 0:
            return {member, other} if sends and self._is_active(other, state) else set()
        if not sends:
            return {member} if other in ended else set()
        room = self.ends.get(
            (*link, number - int(min(self.channel.buffers, 99)), TransferKind.RECEIVE)
        )
        return {member} if room is None or room in ended else set()
