"""The best order of a small problem, proved by OR-tools' constraint solver, CP-SAT.

Microbatches that run on the same workers are alike.  So there is a best order in which each stage
has its forwards, and the backwards that send their gradients, in the order of the microbatches: in
any other one, let the k-th pass of each kind be the k-th microbatch's, and nobody waits for longer.
"""

import importlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipekit.host.cores import available_cores
from pipekit.schedules import Op
from pipekit.searching.bound import bound
from pipekit.searching.problem import KINDS, Orders, Problem

Objective = Literal["makespan", "period"]
_FINEST = 10**6
"""Ticks of the solver's clock, of all passes one after another, if times have no common unit."""
_DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 10, 100, 1000)


@dataclass(frozen=True)
class Proof:
    """What the solver has found, and what it has proved.

    Attributes:
        orders: the best it has found; None if none.
        seconds: what they take, by the solver's clock.
        bound_s: what no orders are shorter than; infinite if none fit.
        is_proved: whether no orders are shorter, by the solver's clock.
    """

    orders: Orders | None
    seconds: float
    bound_s: float
    is_proved: bool


def solve(
    problem: Problem,
    objective: Objective = "makespan",
    seconds: float = 60.0,
    hint: Orders | None = None,
    threads: int | None = None,
) -> Proof:
    """Return the best orders that are found in a time, and a bound for all orders.

    Times are counted in whole ticks, rounded down: the bound holds for the true ones, too.  Bytes
    are, likewise, so that orders at the very brim may not fit by a millionth.
    """
    return _Model(_cp_model(), problem, objective).solve(seconds, hint, threads)


def _cp_model() -> Any:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise ImportError(
            "the exact search needs OR-tools: pip install 'pipekit[search]', or use pk.search, "
            "which does without"
        ) from error


def _tick(numbers: Sequence[float]) -> float:
    """Return what to count in: so that all are whole numbers, if that can be, and not too many."""
    total = sum(numbers)
    for denominator in _DENOMINATORS:
        scaled = [number * denominator for number in numbers]
        if total * denominator <= 10 * _FINEST and all(
            abs(each - round(each)) < 1e-9 for each in scaled
        ):
            return 1 / denominator
    return total / _FINEST


def _floor(number: float) -> int:
    """Return the whole number below, but for errors of rounding."""
    return math.floor(number + 1e-6)


class _Model:
    """The solver's variables: when each pass starts, and whether a backward is whole."""

    def __init__(self, cp: Any, problem: Problem, objective: Objective) -> None:
        self._cp, self._problem, self._model = cp, problem, cp.CpModel()
        delays = [delay for row in problem.delays for delay in row]
        times = [*problem.takes, *delays, *delays, *problem.after]
        self._unit = _tick(times)
        self._horizon = 1 + sum(map(self._ticks, times))
        self._starts = [self._time(f"start {n}") for n in range(problem.whole)]
        self._whole: list[Any] = []  # of each stage's microbatches, one after another
        self._machines: list[list[Any]] = [[] for _ in range(problem.workers)]
        self._held: list[list[tuple[Any, float]]] = [[] for _ in range(problem.workers)]
        self._adding: dict[tuple[int, int], list[tuple[Any, Any, Any]]] = defaultdict(list)
        self._ends: list[list[Any]] = [[] for _ in range(problem.workers)]
        self._input_ends: list[list[Any]] = []  # when gradients leave, by stage and microbatch
        for stage in range(problem.stages):
            self._input_ends.append([self._passes(stage, k) for k in range(problem.microbatches)])
        self._data()
        self._alike()
        self._in_flight()
        self._gradients()
        for worker, machine in enumerate(self._machines):
            self._model.add_no_overlap(machine)
            self._memory(worker)
        self._minimize(objective)

    def solve(self, seconds: float, hint: Orders | None, threads: int | None) -> Proof:
        """See :func:`solve`."""
        if hint is not None:
            self._begin_with(hint)
        solver = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = max(seconds, 1e-3)
        solver.parameters.num_workers = threads or available_cores()
        unit = self._unit
        status = solver.solve(self._model)
        if status in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            value = solver.objective_value * unit
            least = solver.best_objective_bound * unit
            return Proof(self._orders(solver), value, least, status == self._cp.OPTIMAL)
        if status == self._cp.INFEASIBLE:
            return Proof(None, math.inf, math.inf, True)
        return Proof(None, math.inf, solver.best_objective_bound * unit, False)

    def _ticks(self, seconds: float) -> int:
        return _floor(seconds / self._unit)

    def _time(self, name: str) -> Any:
        return self._model.new_int_var(0, self._horizon, name)

    def _passes(self, stage: int, k: int) -> Any:
        """Add a microbatch's passes on a stage; return when its gradient leaves."""
        model, problem = self._model, self._problem
        numbers = [problem.number(op, stage, k) for op in KINDS]
        forward, inputs, weights = (self._starts[number] for number in numbers[:3])
        took = [self._ticks(problem.takes[number]) for number in numbers]
        worker = problem.homes[stage][k]
        machine, ends = self._machines[worker], self._ends[worker]
        is_whole, done = model.new_bool_var(f"whole {stage} {k}"), self._time("done")
        machine.append(model.new_fixed_size_interval_var(forward, took[0], "forward"))
        for start, length, present in (
            (inputs, took[1], ~is_whole),
            (weights, took[2], ~is_whole),
            (inputs, took[3], is_whole),
        ):
            machine.append(
                model.new_optional_fixed_size_interval_var(start, length, present, "backward")
            )
        sent = inputs + took[1] + (took[3] - took[1]) * is_whole
        model.add(inputs >= forward + took[0])
        model.add(weights == inputs).only_enforce_if(is_whole)
        model.add(done == sent).only_enforce_if(is_whole)
        model.add(weights >= sent).only_enforce_if(~is_whole)
        model.add(done == weights + took[2]).only_enforce_if(~is_whole)
        ends.append(forward + took[0])
        ends.append(done)
        self._whole.append(is_whole)
        self._adding[worker, stage].append((weights, done, is_whole))
        held, freed, *_ = (row[stage] for row in problem.kept)
        for until, size in ((sent, -freed), (done, held + freed)):
            if size > 0:
                length = self._time("kept for")
                end = self._time("kept until")
                model.add(end == until)
                self._held[worker].append(
                    (model.new_interval_var(forward, length, end, "kept"), size)
                )
        return sent

    def _data(self) -> None:
        """Let passes wait for what the stages beside send them."""
        problem = self._problem
        for stage, row in enumerate(problem.delays):
            took = self._ticks(problem.seconds[0][stage])
            for k, delay in enumerate(map(self._ticks, row)):
                here, behind = (problem.number(Op.FORWARD, s, k) for s in (stage, stage + 1))
                self._model.add(self._starts[behind] >= self._starts[here] + took + delay)
                back = self._starts[problem.number(Op.BACKWARD_INPUT, stage, k)]
                self._model.add(back >= self._input_ends[stage + 1][k] + delay)

    def _alike(self) -> None:
        """Keep microbatches in order that run on the same workers."""
        problem = self._problem
        columns = [tuple(row[k] for row in problem.homes) for k in range(problem.microbatches)]
        for k, column in enumerate(columns):
            if column not in columns[k + 1 :]:
                continue
            other = columns.index(column, k + 1)
            for stage in range(problem.stages):
                for op in KINDS[:2]:
                    one, next_one = (problem.number(op, stage, n) for n in (k, other))
                    self._model.add(self._starts[next_one] >= self._starts[one])

    def _in_flight(self) -> None:
        """Let a forward wait for the gradients that have to leave before there is room for it."""
        problem = self._problem
        if any(len(set(row)) > 1 for row in problem.homes):
            return
        for stage, row in enumerate(problem.homes):
            room, kept = problem.room[row[0]], problem.kept[0][stage]
            most = math.floor(room / kept * (1 + 1e-9)) if kept > 0 and 0 < room < math.inf else 0
            for k in range(problem.microbatches - most if most else 0):
                behind = self._starts[problem.number(Op.FORWARD, stage, k + most)]
                self._model.add(behind >= self._input_ends[stage][k])

    def _gradients(self) -> None:
        """Keep a stage's gradients from the first pass on that adds to them."""
        model, problem = self._model, self._problem
        for (worker, stage), passes in self._adding.items():
            parts, whole = (problem.heights[place][stage] for place in (2, 3))
            first, first_part, done = (self._time(name) for name in ("first", "part", "done"))
            for start, end, is_whole in passes:
                model.add(first <= start)
                model.add(first_part <= start).only_enforce_if(~is_whole)
                model.add(done <= end)
            higher = self._time("higher")
            model.add_max_equality(higher, [first_part, done])
            last = self._model.new_constant(self._horizon)
            low = min(parts, whole)
            for start, end, size in (
                (first, last, low),
                (first_part, higher, parts - low),
                (done, last, problem.gradients[stage] - low),
            ):
                if size > 0:
                    length = self._time("kept for")
                    kept = model.new_interval_var(start, length, end, "gradients")
                    self._held[worker].append((kept, size))

    def _memory(self, worker: int) -> None:
        room, kept = self._problem.room[worker], self._held[worker]
        if sum(size for _, size in kept) <= room or not kept:
            return
        unit = _tick([*(size for _, size in kept), room])
        intervals, sizes = zip(*kept, strict=True)
        whole_room = math.ceil(max(room, 0.0) / unit - 1e-6)
        self._model.add_cumulative(intervals, [_floor(s / unit) for s in sizes], whole_room)

    def _minimize(self, objective: Objective) -> None:
        model, problem = self._model, self._problem
        least = bound(problem) if objective == "makespan" else 0.0
        value = model.new_int_var(min(self._ticks(least), self._horizon), self._horizon, "value")
        for worker, ends in enumerate(self._ends):
            first: Any = 0
            if objective == "period":
                first = self._time("first")
                for number, start in enumerate(self._starts):
                    _, stage, k = problem.parts(number)
                    if number < problem.stages * problem.microbatches and (
                        problem.homes[stage][k] == worker
                    ):
                        model.add(first <= start)
            after = self._ticks(problem.after[worker])
            for end in ends:
                model.add(value >= end + after - first)
        model.minimize(value)

    def _begin_with(self, orders: Orders) -> None:
        """Tell the solver of orders: when each pass starts, and which backwards are whole."""
        problem = self._problem
        timing = problem.timing(orders)
        for number in timing.sequence:
            place, stage, k = problem.parts(number)
            op, start = KINDS[place], self._ticks(timing.starts[number])
            if op is Op.BACKWARD_INPUT or op is Op.BACKWARD:
                is_whole = self._whole[stage * problem.microbatches + k]
                self._model.add_hint(is_whole, op is Op.BACKWARD)
            if op is Op.BACKWARD:
                number = problem.number(Op.BACKWARD_INPUT, stage, k)
            self._model.add_hint(self._starts[number], start)

    def _orders(self, solver: Any) -> Orders:
        """Return the passes in the order of their starts; what takes no time goes first."""
        problem = self._problem
        rows: list[list[tuple[int, bool, int]]] = [[] for _ in range(problem.workers)]
        for stage, row in enumerate(problem.homes):
            for k, worker in enumerate(row):
                whole = solver.boolean_value(self._whole[stage * problem.microbatches + k])
                for op in (Op.FORWARD, Op.BACKWARD) if whole else KINDS[:3]:
                    number = problem.number(op, stage, k)
                    starting = KINDS[1] if op is Op.BACKWARD else op
                    start = solver.value(self._starts[problem.number(starting, stage, k)])
                    lasts = self._ticks(problem.takes[number]) > 0
                    rows[worker].append((start, lasts, number))
        return [[number for *_, number in sorted(row)] for row in rows]
