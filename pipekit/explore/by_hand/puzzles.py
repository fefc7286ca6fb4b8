"""Puzzles: the tasks of a known method, to be put in an order by hand.

A board is a picture with some of them placed.  A complete board that takes no longer than the best
schedule known is that method, or one as good.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import gt

from pipekit.schedules import (
    OPS,
    Schedule,
    ScheduleError,
    Task,
    check,
    flush,
    gpipe,
    interleaved,
    model_parallel,
    parse,
    pipedream,
    two_bw,
    v_half,
    zb_h1,
)
from pipekit.schedules.clock import Replay
from pipekit.schedules.dependencies import NOTHING, Dependencies
from pipekit.traces import Trace
from pipekit.units import listed

_ORDER = {op: place for place, op in enumerate(OPS)}
"""Of the tasks that a worker can be given: as a microbatch has them."""


@dataclass(frozen=True)
class Puzzle:
    """Tasks to place, each on its worker.

    Attributes:
        name: of the method to be found.
        task: the puzzle, in a few sentences.
        best: the best schedule known: its tasks, their workers and weights are the puzzle's.
        capped: whether no worker may have more microbatches in flight than with it.
    """

    name: str
    task: str
    best: Schedule
    capped: bool = False

    @cached_property
    def empty(self) -> str:
        """The board with nothing placed: a row a worker."""
        return self.picture([()] * len(self.best.workers))

    @cached_property
    def slots(self) -> float:
        """Time slots of the best schedule known."""
        return Trace.from_schedule(self.best).makespan_s

    @cached_property
    def caps(self) -> tuple[int, ...]:
        """The most microbatches that each worker has in flight with it."""
        return check(self.best).peak_in_flight

    @cached_property
    def versions(self) -> tuple[int, ...]:
        """The most weight versions that each worker keeps with it."""
        return check(self.best).peak_versions

    def picture(self, workers: list[tuple[Task, ...]]) -> str:
        """Return a board on which each worker has these tasks, as text."""
        return str(replace(self.best, head=tuple(workers), name=self.name))

    def board(self, picture: str) -> Schedule:
        """Return the schedule of a picture; a ScheduleError names a task that cannot be there."""
        return self._checked(parse(picture))

    def place(self, picture: str, worker: int, task: Task) -> str:
        """Return the picture with one more task, its worker's last, or raise as :meth:`board`."""
        workers = [tuple(tasks) for tasks in self.board(picture).workers]
        workers[worker] += (task,)
        self._checked(replace(self.best, head=tuple(workers)))
        return self.picture(workers)

    def left(self, board: Schedule) -> list[list[Task]]:
        """Return what each worker could be given next: of each op and stage the first task left."""
        choices = []
        for tasks, placed in zip(self.best.workers, board.workers, strict=True):
            first: dict[tuple[object, int], Task] = {}
            for task in sorted(set(tasks) - set(placed), key=lambda task: task[2:]):
                first.setdefault((task.op, task.stage), task)
            choices.append(sorted(first.values(), key=lambda task: (_ORDER[task.op], task.stage)))
        return choices

    def is_complete(self, board: Schedule) -> bool:
        """Return whether every task is placed."""
        return sum(map(len, board.workers)) == sum(map(len, self.best.workers))

    def verdict(self, board: Schedule) -> str:
        """Return how far a board is, and how good."""
        placed, tasks = (sum(map(len, each.workers)) for each in (board, self.best))
        if placed < tasks:
            return f"{placed} of {tasks} tasks placed, no worker waits for ever so far"
        report, drawn = check(board), Trace.from_schedule(board)
        took = drawn.makespan_s
        facts = (
            f"{took:g} slots (best known {self.slots:g}), bubble {100 * drawn.bubble:.1f} %; "
            f"in flight, a worker: {listed(report.peak_in_flight)} "
            f"(best known {listed(self.caps)}); "
            f"weight slots: {listed(report.peak_versions)} (best known {listed(self.versions)}) "
            "(exact)"
        )
        if took > self.slots:
            return f"Executable, but the best known is faster. {facts}"
        if any(map(gt, report.peak_versions, self.versions)):
            return f"Executable, but the best known needs fewer weight slots. {facts}"
        return f"Solved: {self.best.title}, or as good. {facts}"

    def _checked(self, placed: Schedule) -> Schedule:
        """Return a board by the puzzle's name; see :meth:`board`."""
        if len(placed.workers) != len(self.best.workers):
            raise ScheduleError(
                f"the puzzle has {len(self.best.workers)} workers, not {len(placed.workers)}"
            )
        seen: set[int] = set()
        for worker, tasks in enumerate(placed.workers):
            seen |= self._row(worker, tasks)
        for number in sorted(seen):
            for need in self._needs(number):
                if need not in seen:
                    task, missing = self._graph.tasks[number], self._graph.tasks[need]
                    raise ScheduleError(
                        f"{task} needs {missing}, which is not placed yet",
                        self._graph.placed(number),
                    )
        board = replace(placed, name=self.name, batch_size=self.best.batch_size)
        Replay(board.dependencies).require_done()  # raises where workers wait for ever
        return board

    def _row(self, worker: int, tasks: Sequence[Task]) -> set[int]:
        """Check one worker's tasks by themselves; return their numbers."""
        seen: set[int] = set()
        newest: Counter[int] = Counter()
        in_flight = 0
        for task in tasks:
            number, rule = self._number(worker, task, newest[task.stage]), OPS[task.op]
            if number in seen:
                raise ScheduleError(f"{task} is placed twice", [(task, worker)])
            seen.add(number)
            if not rule.is_pass:
                newest[task.stage] = task.version
            in_flight += (rule.is_pass and rule.own is None) - rule.adds_gradient
            if self.capped and in_flight > self.caps[worker]:
                raise ScheduleError(
                    f"worker {worker} may have {self.caps[worker]} microbatches in flight: {task} "
                    f"would be one more, so a backward has to come first",
                    [(task, worker)],
                )
        return seen

    @cached_property
    def _numbers(self) -> Mapping[tuple[object, ...], int]:
        """By worker, op, stage and microbatch."""
        graph = self._graph
        return {(graph.worker_of[n], *task[:3]): n for n, task in enumerate(graph.tasks)}

    @property
    def _graph(self) -> Dependencies:
        return self.best.dependencies

    def _number(self, worker: int, task: Task, newest: int) -> int:
        """Return a task's number among the best schedule's, if it may come now."""
        number = self._numbers.get((worker, *task[:3]))
        if number is None:
            raise ScheduleError(f"worker {worker} has no {task} in this puzzle", [(task, worker)])
        wanted = self._graph.tasks[number].version
        if OPS[task.op].is_pass and newest < wanted:
            raise ScheduleError(
                f"worker {worker}: {task} reads weight version {wanted} in this puzzle, which "
                f"update ^ makes; so far there is version {newest}",
                [(task, worker)],
            )
        if task.version != wanted:
            raise ScheduleError(
                f"worker {worker}: {task} is about weight version {task.version}, and in this "
                f"puzzle about {wanted}",
                [(task, worker)],
            )
        return number

    def _needs(self, number: int) -> Iterator[int]:
        """Yield the numbers of the tasks that one waits for."""
        graph = self._graph
        if OPS[graph.tasks[number].op].is_pass:
            yield from (n for n in (graph.own[number], graph.source[number]) if n != NOTHING)
        else:
            yield from graph.summed(number)


PUZZLES: Mapping[str, Puzzle] = {
    puzzle.name: puzzle
    for puzzle in (
        Puzzle(
            "1. Naive",
            "Two minibatches, three stages, an update after each. A minibatch reads the weights of "
            "the one before: who can work while another does?",
            model_parallel(3).take(2),
        ),
        Puzzle(
            "2. GPipe",
            "A batch cut into four microbatches, which all read the same weights: keep the workers "
            "busy. Memory is no matter.",
            gpipe(3, 4).take(1),
        ),
        Puzzle(
            "3. 1F1B",
            "The same tasks, but a worker may have no more microbatches in flight than there are "
            "stages from it to the last: 3, 2 and 1. As fast as GPipe all the same?",
            flush(3, 4).take(1),
            capped=True,
        ),
        Puzzle(
            "4. Interleaved 1F1B",
            "Four stages on two workers, two each: worker 0 has stages 0 and 2. Smaller stages "
            "fill the pipeline sooner.",
            interleaved(4, 4, workers=2).take(1),
        ),
        Puzzle(
            "5. PipeDream",
            "Update after every minibatch, and never wait: which weights a minibatch reads is "
            "given, older ones on earlier stages, and its backward reads the same.",
            pipedream(3).take(4),
            capped=True,
        ),
        Puzzle(
            "6. PipeDream-2BW",
            "Three batches of two microbatches without a flush, each with weights one update old: "
            "two versions are enough.",
            two_bw(2, 2).take(3),
            capped=True,
        ),
        Puzzle(
            "7. Zero bubble",
            "A backward in two parts: I, for the stage's input, is what the stage before waits "
            "for; W, for the weights, can wait until there is nothing better to do.",
            zb_h1(3, 4).take(1),
            capped=True,
        ),
        Puzzle(
            "8. Under a memory cap",
            "Four stages in a V on two workers: worker 0 has the first and the last. At most four "
            "halves of a microbatch in flight on either worker.",
            v_half(4, 4).take(1),
            capped=True,
        ),
    )
}
"""By name, from the easiest."""
