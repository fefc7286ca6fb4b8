"""The best schedule that can be found for these costs, links and bytes."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipekit.choices import require_kind
from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import ScheduleError
from pipekit.schedules.methods.by_name import named_schedules
from pipekit.searching.bound import anywhere, bound
from pipekit.searching.judge import Found, Judge, Question
from pipekit.searching.rounds import Budget, SearchRounds
from pipekit.units import SECONDS, bytes_text, written


@dataclass(frozen=True)
class Searched(Found):
    """A schedule that was searched for, and how good it is known to be."""

    bound_s: float  # that no schedule takes less than, on the placement if that was given
    step: int  # how many orders had been tried when it was found; 0: it is a named method
    seconds: float  # of the search until then

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

    def __repr__(self) -> str:
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
    placement: Sequence[int] | None = None,
    seconds: float = 10.0,
    optimizer_states: float = 0.0,
    host_bytes_per_s: float | None = None,
    seed: int = 0,
) -> Searched:
    """Return the shortest schedule of a batch found that fits into memory; ``repeat()`` makes more.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them.  Then placements of the stages and policies are tried, which lead to orders, and the
    best orders are improved by local search.  What is returned has been simulated like any other,
    links with their contention included.  More seconds lead to the same steps and then to others:
    they never make it worse.

    Args:
        profile: what each layer costs.
        plan: which layers each stage has, on one worker each, and what is recomputed; orders are
            made as if nothing were, and those that fit by the simulation are compared.
        cluster: the links; None: they cost nothing.
        memory_cap: bytes of each worker, or one number for all; None: no limit.
        microbatches: of the batch; by default the plan's.
        workers: that share the stages; by default as many as stages, one each.
        placement: the worker of each stage; by default it is searched for, too.
        seconds: on a core, after the named methods have been simulated.
        optimizer_states: see :func:`pipekit.simulate`.
        host_bytes_per_s: of the link between each worker and its host, to which activations may
            then be offloaded where a schedule does not fit; None: they stay.
        seed: of the random choices; the same seed may find another schedule on a faster machine.

    Raises:
        ScheduleError: nothing fits; the message says how much memory the most frugal needs.
        ValueError: the arguments do not fit together.
    """
    require_kind("plan", plan, Plan, 'pk.plan(profile, cluster, "balance")')
    stages, m = len(plan.stages), microbatches or plan.microbatches
    workers = workers or stages
    homes = None if placement is None else tuple(placement)
    if not 1 <= workers <= stages or m < 1:
        raise ValueError(
            f"{stages} stages and {m} microbatches do not fit {workers} workers: use at most as "
            f"many workers as stages, and at least 1 of each"
        )
    if homes is not None and (len(homes) != stages or set(homes) != set(range(workers))):
        raise ValueError(
            f"placement names a worker for each of {stages} stages, and each of {workers} workers"
        )
    about = profile, plan, cluster, memory_cap, workers, optimizer_states
    judges = [Judge(*about)]
    if memory_cap is not None and host_bytes_per_s is not None:
        judges.append(Judge(*about, host_bytes_per_s))
    able = [*named_schedules(stages, workers, m)]
    asked, frugal = list[Question](), math.inf
    for judge in judges:
        named = [*map(judge.found, able)]
        frugal = min([frugal, *(max(each.peak_bytes) for each in named)])
        named = [each for each in named if homes in (None, each.placement)]
        asked.append(Question(judge, named, m, homes))
    if homes is None:
        leasts = [anywhere(judge.problem([0] * stages, m)) for judge in judges]
    else:
        leasts = [bound(judge.problem(homes, m)) for judge in judges]
    budget, found = Budget(), list[Searched]()
    for number, (question, least) in enumerate(zip(asked, leasts, strict=True)):
        budget.allow(1 / (len(asked) - number), seconds)
        rounds = SearchRounds(question, least, budget, seed)
        rounds.run()
        if best := rounds.best:
            bound_s = min(*leasts, best.makespan_s)
            found.append(
                Searched(**vars(best), bound_s=bound_s, step=rounds.step, seconds=rounds.seconds)
            )
    if not found:
        raise ScheduleError(
            f"no schedule was found that fits: the most frugal method needs "
            f"{bytes_text(frugal)} on a worker; cut the model into more stages, recompute, or use "
            f"smaller microbatches"
        )
    return min(found, key=lambda each: each.makespan_s)
