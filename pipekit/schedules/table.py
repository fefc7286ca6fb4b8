"""A pipeline method, written out: who does what, in which order, on which weights."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, count
from numbers import Integral
from operator import index, itemgetter
from typing import Any, Self, TypeVar

from pipekit.host.memory import not_collected
from pipekit.reading import printable
from pipekit.schedules.dependencies import Dependencies
from pipekit.schedules.ops import Op
from pipekit.schedules.task import ScheduleError, Task, Tasks, require_room, require_tasks

T = TypeVar("T")
_IDLE = 1000
"""Workers without a task that a table may have."""


@dataclass(frozen=True)
class Table:
    """What a :class:`pipekit.schedules.Schedule` says, where its attributes are described."""

    head: tuple[Tasks, ...]
    name: str = field(default="schedule", compare=False)
    stashing: bool = True
    batch_size: int | None = None
    overlaps: frozenset[tuple[Task, Task]] = frozenset()
    period: tuple[Tasks, ...] = ()
    chunks: int = 1

    def __post_init__(self) -> None:
        for name in ("head", "period"):  # lists do, too, and are then compared and hashed alike
            lists = tuple(map(tuple, getattr(self, name)))
            object.__setattr__(self, name, lists)
            require_tasks(tasks[:1] for tasks in lists)  # what is behind, once it is looked at
        object.__setattr__(self, "overlaps", frozenset(self.overlaps))
        for name, number in (("batch_size", self.batch_size), ("chunks", self.chunks)):
            if number is not None and not (isinstance(number, Integral) and number > 0):
                raise ScheduleError(f"{name} must be a whole number of at least 1, not {number!r}")
            object.__setattr__(self, name, number and index(number))
        if self.period and len(self.period) != len(self.head):
            raise ScheduleError(
                f"the head has {len(self.head)} workers and the period {len(self.period)}: give "
                f"each worker both, empty ones too"
            )

    # Of every schedule, finite or not.

    @property
    def is_endless(self) -> bool:
        """Whether it repeats a period without end."""
        return bool(self.period)

    @property
    def worker_count(self) -> int:
        """How many workers there are."""
        return len(self.head)

    @cached_property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return 1 + index(max((stage for each in self._counts for _, stage in each), default=-1))

    @cached_property
    def stage_workers(self) -> tuple[tuple[int, ...], ...]:
        """The workers that have each stage, and borrow its weights from no other."""
        found: list[list[int]] = [[] for _ in range(self.stages)]
        for worker, borrowed in enumerate(self.borrowed):
            for stage in {stage for _, stage in self._done_by(worker)} - borrowed:
                found[stage].append(worker)
        return tuple(map(tuple, found))

    @cached_property
    def borrowed(self) -> tuple[frozenset[int], ...]:
        """The stages of which each worker has weights only while another one's copy is there."""
        each = map(self._done_by, range(self.worker_count))
        return tuple(frozenset(stage for op, stage in done if op.borrows) for done in each)

    def _done_by(self, worker: int) -> set[tuple[Op, int]]:
        return set().union(*self._counts[worker :: self.worker_count])

    @property
    def title(self) -> str:
        """The name on one line, with nothing that a terminal would obey."""
        return printable(" ".join(self.name.split()))

    @cached_property
    def ops(self) -> frozenset[Op]:
        """What its tasks do."""
        return frozenset(op for each in self._counts for op, _ in each)

    @cached_property
    def last_microbatch(self) -> int:
        """The last in heads and periods, as they are written; -1: there is none."""
        try:
            return max(map(index, map(itemgetter(2), chain(*self.head, *self.period))), default=-1)
        except (TypeError, IndexError):
            self._require_tasks()
            raise

    @cached_property
    def trains(self) -> bool:
        """Whether there is any backward pass: without one, the schedule is inference."""
        return any(op.is_backward for op in self.ops)

    def remembered(self, what: Hashable, find: Callable[[], T], of: Hashable = None) -> T:
        """Return a result about it, found once for each ``what``, and anew for another ``of``."""
        if what not in self._known or self._known[what][0] != of:
            self._known[what] = of, find()
        found: T = self._known[what][1]
        return found

    # Of a schedule without end: its period, and finite parts.

    @cached_property
    def period_microbatches(self) -> int:
        """By how many microbatches each repetition of the period is later than the one before."""
        forwards: Counter[int] = Counter()
        for each in self._counts[self.worker_count :]:
            forwards.update({stage: n for (op, stage), n in each.items() if op is Op.FORWARD})
        return max(forwards.values(), default=0)

    @cached_property
    def period_versions(self) -> tuple[int, ...]:
        """By how many weight versions of each stage likewise: its updates in a period."""
        made = [0] * self.stages
        # Each worker that has a stage makes all of its updates.
        for each in self._counts[self.worker_count :]:
            for (op, stage), updates in each.items():
                if not op.is_pass:
                    made[stage] = max(made[stage], updates)
        return tuple(made)

    @cached_property
    def is_closed(self) -> bool:
        """Whether each repetition of the period is complete by itself, as a batch with a flush is.

        Then there is no head, and a period has all passes of its microbatches, on versions made in
        it or the newest before it.
        """
        if any(self.head):
            return False
        made, read = self.period_versions, set(map(itemgetter(1, 3), chain(*self.period)))
        is_whole = self.last_microbatch < self.period_microbatches
        return is_whole and all(version <= made[stage] for stage, version in read)

    @cached_property
    def batch_stops(self) -> tuple[int, ...]:
        """The microbatch behind each batch of the data, of those in a period's count.

        Without updates (inference) every microbatch is a batch.
        """
        size = self.period_microbatches
        if self.batch_size:
            return tuple(range(self.batch_size, size + 1, self.batch_size))
        ends = (k for op, _, k, _ in chain(*self.period) if not op.is_pass)
        return tuple(sorted({1 + end % size for end in ends})) or tuple(range(1, size + 1))

    def later(self, task: Task, periods: int) -> Task:
        """Return a ``task`` of the period as it is so many ``periods`` later."""
        op, stage, microbatch, version = task
        return Task(
            op,
            stage,
            microbatch + periods * self.period_microbatches,
            version + periods * self.period_versions[stage],
        )

    def take(self, batches: int) -> Self:
        """Return the finite schedule of the first ``batches``: their tasks, in their order.

        An update of which the end cuts the sum sums what is left.

        Raises:
            ScheduleError: ``batches`` is below 1, more than a finite schedule has, or so many that
                their table fits no memory.
        """
        if not isinstance(batches, Integral) or batches < 1:
            raise ScheduleError(f"batches must be a whole number of at least 1, not {batches!r}")
        if self.period:
            return self.before(self._stop(batches))
        if batches > len(self.batches):
            raise ScheduleError(
                f"{self.title} has {len(self.batches)} batches and not {batches}: repeat() makes "
                f"a schedule without end of one of whole batches"
            )
        return self.before(self.batches[batches - 1].stop)

    @not_collected()
    def before(self, microbatch: int) -> Self:
        """Return the finite schedule of the microbatches before one; see :meth:`take`."""
        if not self.period and microbatch >= self.microbatches:
            return self
        require_room(
            f"{microbatch:,} microbatches x {self.stages} stages", microbatch * self.stages
        )
        closed, size = self.is_endless and self.is_closed, self.period_microbatches
        lists: list[Tasks] = []
        for head, period in zip(self.head, self.period or ((),) * len(self.head), strict=True):
            # An update behind the microbatch may sum some before it, less than a period's: those of
            # other workers too, where a stage is on several.
            first = 0 if closed else min((task.microbatch for task in period), default=0)
            periods = -(-(microbatch - first) // size) + (not closed) if period else 0
            again = (self.later(task, times) for times in range(1, periods) for task in period)
            tasks = chain(head, period if periods else (), again)
            is_whole = closed and not microbatch % size
            lists.append(tuple(tasks) if is_whole else _cut(tasks, microbatch))
        repeated = {*chain(*self.period)} if self.overlaps else set()
        overlaps: set[tuple[Task, Task]] = set()
        for one, other in self.overlaps:
            for times in count() if one in repeated else (0,):
                pair = (self.later(one, times), self.later(other, times)) if times else (one, other)
                if max(task.microbatch for task in pair) >= microbatch:
                    break
                overlaps.add(pair)
        return replace(self, head=tuple(lists), overlaps=frozenset(overlaps), period=())

    def batch(self, number: int) -> range:
        """Return the microbatches of a batch."""
        if not self.period:
            return self.batches[number]
        return range(self._stop(number), self._stop(number + 1))

    def each_batch(self) -> Iterator[range]:
        """Yield the microbatches of each batch."""
        return map(self.batch, count()) if self.period else iter(self.batches)

    def excerpt(self, batches: int | None = None) -> Self:
        """Return what is drawn, printed and simulated of it, with the batches in its name.

        Args:
            batches: how many; None: of a finite schedule all, else as many as the first period has
                tasks of, which fill the pipeline: 1 of a method that flushes.
        """
        if not self.period:
            return self if batches is None else self.take(batches)
        if batches is None:
            last = self.last_microbatch
            batches = next(number for number in count(1) if self._stop(number) > last)
        name = f"{self.title}, {batches} {'batch' if batches == 1 else 'batches'}"
        return self.remembered("excerpt", lambda: replace(self.take(batches), name=name), batches)

    def repeat(self) -> Self:
        """Return the schedule without end that repeats this finite one of whole batches.

        Raises:
            ScheduleError: it is endless, empty, or an update behind the last microbatch lacks.
        """
        if self.period:
            raise ScheduleError(f"{self.title} has no end: there is nothing to repeat() behind it")
        last = self.last_microbatch
        if last < 0:
            raise ScheduleError("the schedule is empty: there is nothing to repeat()")
        for worker, tasks in enumerate(self.head):
            ends = dict.fromkeys(map(itemgetter(1), tasks), -1) if self.trains else {}
            ends |= {stage: k for op, stage, k, _ in tasks if not op.is_pass}
            for stage, end in ends.items():
                if end != last and stage not in self.borrowed[worker]:
                    missing = f"up to microbatch {end}" if end >= 0 else "nothing"
                    raise ScheduleError(
                        f"worker {worker}: the last update of stage {stage} sums {missing}, and "
                        f"the last microbatch is {last}: repeat() takes whole batches"
                    )
        return replace(self, head=((),) * len(self.head), period=self.head)

    # Of a finite schedule.

    @property
    def workers(self) -> tuple[Tasks, ...]:
        """Every worker's tasks; raises ScheduleError if there is no end to them."""
        self._require_end()
        return self.head

    @cached_property
    def microbatches(self) -> int:
        """How many pass through in the whole run; raises ScheduleError likewise."""
        self._require_end()
        return 1 + self.last_microbatch

    @cached_property
    @not_collected()
    def dependencies(self) -> Dependencies:
        """Which task needs which.

        Raises:
            ScheduleError: the schedule has no end, a task stands in the table twice, counts from
                below 0 or beyond the table's size, or tasks cannot run together.
        """
        stages, microbatches = self.stages, self.microbatches
        try:
            return Dependencies(self.head, stages, microbatches, self.overlaps, self.chunks)
        except TypeError:
            self._require_tasks()
            raise

    @property
    def updates(self) -> tuple[tuple[range, ...], ...]:
        """For each stage, the microbatches that its updates sum: ``[i]`` those of ``i + 1``."""
        return self.dependencies.updates

    @property
    def update_of(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, which update sums each microbatch, from 1; also one that is missing."""
        return self.dependencies.update_of

    @cached_property
    def batches(self) -> tuple[range, ...]:
        """The microbatches of each batch of the data; those after the last update are one.

        Without updates (inference) every microbatch is a batch.
        """
        end = self.microbatches
        if self.batch_size:
            stops = [*range(self.batch_size, end, self.batch_size), end]
        elif any(self.updates):
            stops = sorted({summed.stop for stage in self.updates for summed in stage} | {end})
        else:
            stops = list(range(1, end + 1))
        return tuple(map(range, [0, *stops[:-1]], stops))

    @cached_property
    def batch_of(self) -> tuple[int, ...]:
        """The batch of each microbatch."""
        return tuple(number for number, batch in enumerate(self.batches) for _ in batch)

    def __len__(self) -> int:
        """Return how many batches it has; raises ScheduleError likewise."""
        return len(self.batches)

    def __bool__(self) -> bool:
        return True  # whatever its length

    def __getstate__(self) -> dict[str, Any]:
        """Return what the table says itself: the rest follows from it, and is large."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _require_end(self) -> None:
        if self.period:
            raise ScheduleError(
                f"{self.title} is a schedule without end: take(batches) gives that of the first "
                f"batches"
            )

    @cached_property
    def _known(self) -> dict[Hashable, tuple[Hashable, Any]]:
        return {}

    @cached_property
    def _counts(self) -> list[Counter[tuple[Op, int]]]:
        """How many tasks of each op and stage are in each worker's head, and then in its period."""
        workers, tasks = self.worker_count, sum(map(len, (*self.head, *self.period)))
        if workers > tasks + _IDLE:
            raise ScheduleError(
                f"the table has {workers:,} workers and {tasks:,} tasks: leave out workers without "
                f"a task"
            )
        try:
            found = [Counter(map(itemgetter(0, 1), tasks)) for tasks in (*self.head, *self.period)]
        except (TypeError, IndexError):
            self._require_tasks()
            raise
        if not all(isinstance(op, Op) and isinstance(s, Integral) for op, s in set().union(*found)):
            self._require_tasks()
        return found

    def _require_tasks(self) -> None:
        require_tasks(map(chain, self.head, self.period or ((),) * len(self.head)))

    def _stop(self, batches: int) -> int:
        """Return the microbatch behind so many batches of a schedule without end."""
        periods, rest = divmod(index(batches), len(self.batch_stops))
        return periods * self.period_microbatches + (self.batch_stops[rest - 1] if rest else 0)


def _cut(tasks: Iterable[Task], microbatch: int) -> Tasks:
    """Return a worker's tasks of the microbatches before one; see :meth:`Table.take`.

    Work in the idle time of a batch behind the end names a later version, and goes, too.
    """
    kept: list[Task] = []
    summed: dict[int, int] = {}  # by stage: the microbatch behind its last update
    later: set[tuple[int, int]] = set()  # stage and version of updates behind the end
    for task in tasks:
        op, stage, number, version = task
        if op.is_pass:
            if number < microbatch:
                kept.append(task)
        elif summed.get(stage, 0) < microbatch:
            last = min(number, microbatch - 1)
            kept.append(Task(op, stage, last, version))
            summed[stage] = last + 1
        else:
            later.add((stage, version))
    here = {task.stage for task in kept if task.op.is_pass}
    return tuple(
        task for task in kept if task.stage in here and (task.stage, task.version) not in later
    )
