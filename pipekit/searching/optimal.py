"""The best schedule there is for small pipelines, with its proof."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.exact import Objective, solve
from pipekit.searching.judge import Judge
from pipekit.searching.policies import Placement
from pipekit.searching.problem import Orders, Problem
from pipekit.searching.steps import Question, best_answer

_FIRST_S = 1.0
"""Seconds of search, with whose orders the solver begins; at most a tenth of all."""


@dataclass(frozen=True)
class Optimum:
    """The best schedule of a batch that was found, and how good any could be.

    Attributes:
        schedule: the table.
        seconds: its makespan, or its period; if links are contended for, simulated ones are longer.
        bound_s: no schedule with the stages on these workers takes less.
        is_proved: whether the solver has proved that none is better; ``seconds`` may then be above
            ``bound_s`` by a ten-thousandth, since the solver counts in whole ticks.
    """

    schedule: Schedule
    seconds: float
    bound_s: float
    is_proved: bool


def optimal(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None = None,
    memory_cap: float | Sequence[float] | None = None,
    *,
    microbatches: int | None = None,
    placement: Sequence[int] | None = None,
    objective: Objective = "makespan",
    seconds: float = 60.0,
    threads: int | None = None,
    optimizer_states: float = 0.0,
) -> Optimum:
    """Return the best schedule there is that flushes after every batch, and the proof that it is.

    OR-tools' constraint solver (``pip install 'pipekit[search]'``) orders all passes of a batch;
    each backward may be whole or in two parts.  Four workers with six microbatches take seconds to
    minutes; what is larger, :func:`pipekit.search` finds good schedules for.

    Args:
        profile: what each layer costs.
        plan: which layers each stage has; nothing is recomputed.
        cluster: the links, each taken to be free when a message comes; None: they cost nothing.
        memory_cap: bytes of each worker, or one number for all; None: no limit.
        microbatches: of the batch; by default the plan's.
        placement: the worker of each stage; by default each has one of its own.
        objective: "makespan"; or "period": the time between batches in the steady state, if each
            worker goes on with the next batch as soon as it can.
        seconds: when to end at the latest, proved or not.
        threads: of the solver; by default as many as there are cores.
        optimizer_states: see :func:`pipekit.simulate`.

    Raises:
        ImportError: OR-tools is not installed.
        ScheduleError: no order fits into memory, or none was found in time.
        ValueError: the arguments do not fit together.
    """
    if any(stage.recompute != "never" for stage in plan.stages):
        raise ValueError("the exact search knows no recomputation: use a plan with 'never'")
    homes = tuple(range(len(plan.stages)) if placement is None else placement)
    m = microbatches or plan.microbatches
    if len(homes) != len(plan.stages) or set(homes) != set(range(len(set(homes)))):
        raise ValueError(
            f"placement names a worker for each of {len(plan.stages)} stages, all from 0 on"
        )
    judge = Judge(profile, plan, cluster, memory_cap, len(set(homes)), optimizer_states)
    problem = judge.problem(tuple((worker,) * m for worker in homes))
    first = _first(judge, problem, homes, m, min(_FIRST_S, seconds / 10))
    proof = solve(problem, objective, seconds, first, threads)
    unproved = first if objective == "makespan" and proof.bound_s < math.inf else None
    orders = proof.orders or unproved
    if orders is None:
        raise ScheduleError(
            "no order of these passes fits into memory: use a higher memory_cap, more stages, or "
            "smaller microbatches"
            if proof.bound_s == math.inf
            else f"none was found in {seconds:g} s: give it more, or use pk.search"
        )
    if not problem.fit(orders):
        raise ScheduleError("the best order needs a millionth more memory: raise memory_cap by it")
    schedule = judge.made(problem, orders, "optimal").schedule
    took = problem.timing(orders).makespan if objective == "makespan" else proof.seconds
    return Optimum(schedule, took, proof.bound_s, proof.is_proved)


def _first(
    judge: Judge, problem: Problem, placement: Placement, microbatches: int, seconds: float
) -> Orders | None:
    """Return orders to begin with: those that a search with this placement finds."""
    named = named_schedules(len(placement), len(judge.caps), microbatches)
    question = Question([judge.found(each) for each in named], microbatches, None, placement)
    found = best_answer(judge, question, seconds, seed=0)
    return problem.orders(found.schedule) if found else None
