"""The best schedule that can be found for these costs, links and bytes."""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.bound import bound
from pipekit.searching.judge import Found, Judge
from pipekit.searching.local_search import improve
from pipekit.searching.policies import Placement, greedy, improved, policies
from pipekit.searching.problem import Homes, Orders, Problem, homes_of
from pipekit.searching.versions import (
    Versions,
    WeightReads,
    by_2bw,
    by_pipedream,
    depths,
    named_with,
    require_versions,
)

_SHARED_OUT = 3
"""How many placements are made beside the named methods' where workers have several stages."""
_POLICIES = 0.25
"""Of the seconds, the share in which orders are made by policies; local search has the rest."""
_HEATS = ((6, 0.4), (2, 1.0))
"""Local search goes on with so many of the best orders, for such a share of the time that is left:
first many for a short while, then few."""


@dataclass(frozen=True)
class _Question:
    """What is searched for.

    Attributes:
        named: the named methods that are answers, simulated.
        microbatches: how many, of all batches.
        reads: which weights are read, of several batches; None: a single one.
        placement: the worker of each stage; None: that is searched for, too.
    """

    named: Sequence[Found]
    microbatches: int
    reads: WeightReads | None
    placement: Placement | None


@dataclass(frozen=True)
class _Candidate:
    """Orders of a problem's passes."""

    problem: Problem
    orders: Orders
    makespan: float


def search(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None = None,
    memory_cap: float | Sequence[float] | None = None,
    *,
    microbatches: int | None = None,
    workers: int | None = None,
    batches: int = 1,
    versions: Versions | Sequence[Versions] = "1",
    two_directions: bool = False,
    placement: Sequence[int] | None = None,
    seconds: float = 10.0,
    optimizer_states: float = 0.0,
    seed: int = 0,
) -> Schedule:
    """Return the shortest schedule found that fits into memory.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them.  Then orders are made pass by pass by several policies, for stages in a row, in a loop
    or in a V, and shared out so that no worker has much more to do than others; the best are
    improved by local search.  A backward may stand whole or in two parts.  What is returned has
    been simulated like any other, links with their contention included.

    Args:
        profile: what each layer costs.
        plan: which layers each stage has, on one worker each, and what is recomputed; orders are
            made as if nothing were, and those that fit by the simulation are compared.
        cluster: the links; None: they cost nothing.
        memory_cap: bytes of each worker, or one number for all; None: no limit.
        microbatches: of a batch; by default the plan's.
        workers: that share the stages; by default as many as stages, one each.
        batches: how many the schedule has, one after another.  With a flush, the search is for one
            of them; without, for all together.
        versions: which weights may be read: "1", the newest, with a flush behind each batch;
            "2bw", PipeDream-2BW's; "pipedream", PipeDream's with weight stashing, of minibatches
            that are not cut.  Of several, the one that is fastest within the memory.
        two_directions: whether a stage may be on two workers, as in Chimera and DualPipe, with
            twice the weights; simulate what comes of it with ``plan.with_replicas``.
        placement: the worker of each stage, if that is given; by default it is searched for, too.
        seconds: after the named methods have been simulated.
        optimizer_states: see :func:`pipekit.simulate`.
        seed: of the random choices; the same seed may find another schedule on a faster machine.

    Raises:
        ScheduleError: nothing fits; the message says how much memory the most frugal needs.
        ValueError: the arguments do not fit together.
    """
    workers = workers or len(plan.stages)
    m = microbatches or plan.microbatches
    rules: tuple[Versions, ...] = (versions,) if isinstance(versions, str) else tuple(versions)
    _require_counts(len(plan.stages), workers, m, placement)
    require_versions(rules, m)
    judge = Judge(profile, plan, cluster, memory_cap, workers, optimizer_states)
    asked = [
        question
        for rule in rules
        for question in _questions(judge, rule, m, batches, two_directions, placement)
    ]
    found: list[Found] = []
    end = time.monotonic() + seconds
    for number, question in enumerate(asked):
        left = max(0.0, end - time.monotonic()) / (len(asked) - number)
        best = _Search(judge, question, left, seed).best()
        if best is None:
            continue
        if batches > 1 and not question.reads:
            best = judge.found(best.schedule.repeat().take(batches))
        found.append(best)
    if not found:
        named = [max(each.peak_bytes) for question in asked for each in question.named]
        raise ScheduleError(
            f"no schedule was found that fits: the most frugal method needs "
            f"{min(named, default=math.inf):.4g} bytes on a worker; cut the model into more "
            f"stages, recompute, or use smaller microbatches"
        )
    return min(found, key=lambda each: each.makespan_s).schedule


def _questions(
    judge: Judge,
    rule: Versions,
    microbatches: int,
    batches: int,
    two_directions: bool,
    placement: Sequence[int] | None,
) -> Iterator[_Question]:
    """Yield what to search for under a rule for versions, with the named methods that follow it."""
    stages, workers = len(judge.plan.stages), len(judge.caps)
    homes = None if placement is None else tuple(placement)
    if rule == "1":
        named = named_schedules(stages, workers, microbatches, two_directions)
        yield _Question([judge.found(each) for each in named], microbatches, None, homes)
        return
    found = [*map(judge.found, named_with(rule, stages, workers, microbatches, batches))]
    if rule == "2bw":
        reads = by_2bw(stages, microbatches, batches)
        yield _Question(found, microbatches * batches, reads, homes)
        return
    for each in depths(stages, workers, batches):
        reads = by_pipedream(each, batches)
        own = [one for one in found if reads.are_read_by(one.schedule)]
        yield _Question(own, batches, reads, homes)


def _require_counts(
    stages: int, workers: int, microbatches: int, placement: Sequence[int] | None
) -> None:
    if stages < workers or microbatches < 1:
        raise ValueError(
            f"{stages} stages and {microbatches} microbatches do not fit {workers} workers: use "
            f"at most as many workers as stages, and at least 1 microbatch"
        )
    if placement is not None and (
        len(placement) != stages or set(placement) != set(range(workers))
    ):
        raise ValueError(
            f"placement names a worker for each of {stages} stages, and each of {workers} workers"
        )


class _Search:
    """Named methods, policies, then local search from the best orders."""

    def __init__(self, judge: Judge, question: _Question, seconds: float, seed: int) -> None:
        self._judge, self._question, self._seed = judge, question, seed
        now = time.monotonic()
        self._policies_end, self._end = now + seconds * _POLICIES, now + seconds
        self._problems = self._placed()
        self._shortest = math.inf

    def best(self) -> Found | None:
        """Return the best schedule found that fits, or None."""
        homes = self._problems if self._question.placement else None
        able = [
            each
            for each in self._question.named
            if self._judge.fits(each) and (homes is None or homes_of(each.schedule) in homes)
        ]
        best = min(able, key=lambda each: each.makespan_s, default=None)
        self._shortest = best.makespan_s if best else math.inf
        candidates = [*self._by_names(), *self._by_policies()]
        improved: list[_Candidate] = []
        for count, share in _HEATS:
            candidates = self._improved(_best_of(candidates, count), share)
            improved += candidates
        for each in improved:  # some are shorter, some meet less on links
            made = self._judge.made(each.problem, each.orders)
            if self._judge.fits(made) and (best is None or made.makespan_s < best.makespan_s):
                best = made
        return best

    def _placed(self) -> dict[Homes, Problem]:
        """Return the problem of each placement that is tried, by where that has the passes."""
        question = self._question
        if question.placement is not None:
            problem = self._problem(question.placement)
            return {problem.homes: problem}
        stages, workers = len(self._judge.plan.stages), len(self._judge.caps)
        looped = self._problem([stage % workers for stage in range(stages)])
        found = dict.fromkeys(homes_of(each.schedule) for each in question.named)
        problems = {homes: self._judge.problem(homes, question.reads) for homes in found}
        problems[looped.homes] = looped
        if stages > workers:
            start = [row[0] for row in min(problems.values(), key=bound).homes]

            def least(placement: Placement) -> float:
                return bound(self._problem(placement, 1), question.microbatches)

            for number in range(_SHARED_OUT):
                made = self._problem(improved(start, workers, least, self._seed + number))
                problems[made.homes] = made
        return problems

    def _problem(self, placement: Sequence[int], microbatches: int | None = None) -> Problem:
        count = microbatches or self._question.microbatches
        homes = tuple((worker,) * count for worker in placement)
        return self._judge.problem(homes, self._question.reads)

    def _by_names(self) -> Iterator[_Candidate]:
        """Yield the named methods' orders."""
        for each in self._question.named:
            problem = self._problems.get(homes_of(each.schedule))
            if problem is not None:
                yield from self._candidates(problem, problem.orders(each.schedule))

    def _by_policies(self) -> Iterator[_Candidate]:
        """Yield orders made by policies, until their time is over, and at least one that fits."""
        able = [problem for problem in self._problems.values() if _is_one_way(problem)]
        tried = [(problem, policy) for problem in able for policy in policies(problem)]
        random.Random(self._seed).shuffle(tried)
        for problem, policy in tried:
            if time.monotonic() > self._policies_end and self._shortest < math.inf:
                return
            yield from self._candidates(problem, greedy(problem, policy))

    def _improved(self, candidates: Sequence[_Candidate], share: float) -> list[_Candidate]:
        """Return the candidates after local search, in a share of the time that is left."""
        found: list[_Candidate] = []
        now = time.monotonic()
        end = now + max(0.0, self._end - now) * share
        for number, each in enumerate(candidates):
            now = time.monotonic()
            until = now + max(0.0, end - now) / (len(candidates) - number)
            seed = self._seed + number
            orders = improve(each.problem, each.orders, until, seed, bound(each.problem))
            found.append(_Candidate(each.problem, orders, each.problem.timing(orders).makespan))
        return found

    def _candidates(self, problem: Problem, orders: Orders) -> Iterator[_Candidate]:
        """Yield orders that fit, as they are and with neighbouring parts of backwards as one."""
        if not problem.has(orders):
            return
        for each in (orders, problem.merged(orders)):
            makespan = problem.timing(each).makespan
            if makespan < math.inf and problem.fit(each):
                self._shortest = min(self._shortest, makespan)
                yield _Candidate(problem, each, makespan)


def _best_of(candidates: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """Return the best candidates, of each placement at most half of them."""
    chosen: list[_Candidate] = []
    for each in sorted(candidates, key=lambda each: each.makespan):
        alike = sum(other.problem is each.problem for other in chosen)
        if alike < max(1, count // 2) or len({id(c.problem) for c in candidates}) == 1:
            chosen.append(each)
        if len(chosen) == count:
            break
    return chosen


def _is_one_way(problem: Problem) -> bool:
    return all(len(set(row)) == 1 for row in problem.homes)
