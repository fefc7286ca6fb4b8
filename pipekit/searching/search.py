"""The best schedule that can be found for these costs, links and bytes."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, ScheduleError
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.bound import anywhere, bound
from pipekit.searching.judge import Judge, Question
from pipekit.searching.rounds import Budget, SearchRounds
from pipekit.searching.versions import (
    Versions,
    by_2bw,
    by_pipedream,
    depths,
    named_with,
    require_versions,
)
from pipekit.units import SECONDS, written


@dataclass(frozen=True)
class Searched:
    """A schedule that was searched for, and how good it is known to be.

    Attributes:
        schedule: the shortest table found.
        makespan_s: its seconds, simulated.
        peak_bytes: of each worker, simulated, when the optimizer has its state.
        bound_s: seconds that no schedule takes less than: on the placement, if that was given, and
            else on any.
        step: how many orders had been tried when it was found; 0: it is a named method.
        seconds: of the search until then.
    """

    schedule: Schedule
    makespan_s: float
    peak_bytes: tuple[float, ...]
    bound_s: float
    step: int
    seconds: float

    @property
    def gap(self) -> float:
        """By which part of the bound it is longer, at most, than the shortest schedule there is."""
        return self.makespan_s / self.bound_s - 1 if self.bound_s else math.inf

    def to_json(self) -> str:
        """Return everything: the table as CSV, the workers of each stage, and the numbers."""
        record = vars(self) | {
            "label": "simulated",
            "schedule": self.schedule.to_csv(),
            "stage_workers": self.schedule.stage_workers,
            "gap": self.gap,
        }
        return json.dumps(record, indent=1) + "\n"

    def __str__(self) -> str:
        found = f"in step {self.step:,}, after {self.seconds:.1f} s" if self.step else "by name"
        return (
            f"{self.schedule.title}: {written(self.makespan_s, SECONDS)} (simulated), found "
            f"{found}; none takes less than {written(self.bound_s, SECONDS)} (gap {self.gap:.1%})"
        )


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
    host_bytes_per_s: float | None = None,
    seed: int = 0,
) -> Searched:
    """Return the shortest schedule found that fits into memory.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them.  Then placements of the stages and policies are tried, which lead to orders, and the
    best orders are improved by local search.  A backward may stand whole or in two parts.  What is
    returned has been simulated like any other, links with their contention included.  More seconds
    lead to the same steps and then to others: they never make it worse.

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
        seconds: on a core, after the named methods have been simulated.
        optimizer_states: see :func:`pipekit.simulate`.
        host_bytes_per_s: of the link between each worker and its host, to which activations may
            then be offloaded where a schedule with a flush does not fit; None: they stay.
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
    about = profile, plan, cluster, memory_cap, workers, optimizer_states
    stays, leaves = Judge(*about), Judge(*about, host_bytes_per_s)
    may_leave = memory_cap is not None and host_bytes_per_s is not None
    asked = [
        (judge, question)
        for rule in rules
        for judge in ((stays, leaves) if may_leave and rule == "1" else (stays,))
        for question in _questions(judge, rule, m, batches, two_directions, placement)
    ]
    budget, found = Budget(), list[Searched]()
    leasts = [_least(*each, batches, two_directions) for each in asked]
    for number, ((judge, question), least) in enumerate(zip(asked, leasts, strict=True)):
        budget.allow(1 / (len(asked) - number), seconds)
        rounds = SearchRounds(judge, question, budget, seed)
        rounds.run(least)
        if (best := rounds.best) is None:
            continue
        if batches > 1 and not question.reads:
            best = judge.simulated(best.schedule.repeat().take(batches))
        made = best.schedule, best.makespan_s, best.peak_bytes
        found.append(Searched(*made, min(*leasts, best.makespan_s), rounds.step, rounds.seconds))
    if not found:
        named = [max(each.peak_bytes) for _, question in asked for each in question.named]
        raise ScheduleError(
            f"no schedule was found that fits: the most frugal method needs "
            f"{min(named, default=math.inf):.4g} bytes on a worker; cut the model into more "
            f"stages, recompute, or use smaller microbatches"
        )
    return min(found, key=lambda each: each.makespan_s)


def _least(judge: Judge, question: Question, batches: int, two_directions: bool) -> float:
    """Return a time that no answer is shorter than."""
    times = 1 if question.reads else batches
    if question.placement is not None:
        return bound(judge.placed(question.placement, question.microbatches), times)
    one = judge.placed([0] * len(judge.plan.stages), question.microbatches)
    return anywhere(one, times, copies=1 + two_directions)


def _questions(
    judge: Judge,
    rule: Versions,
    microbatches: int,
    batches: int,
    two_directions: bool,
    placement: Sequence[int] | None,
) -> Iterator[Question]:
    """Yield what to search for under a rule for versions, with the named methods that follow it."""
    stages, workers = len(judge.plan.stages), len(judge.caps)
    homes = None if placement is None else tuple(placement)
    if rule == "1":
        named = named_schedules(stages, workers, microbatches, two_directions)
        yield Question([judge.found(each) for each in named], microbatches, None, homes)
        return
    found = [*map(judge.found, named_with(rule, stages, workers, microbatches, batches))]
    if rule == "2bw":
        reads = by_2bw(stages, microbatches, batches)
        yield Question(found, microbatches * batches, reads, homes)
        return
    for each in depths(stages, workers, batches):
        reads = by_pipedream(each, batches)
        own = [one for one in found if reads.are_read_by(one.schedule)]
        yield Question(own, batches, reads, homes)


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
