"""The best schedule that can be found for these costs, links and bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipekit.choices import require_kind
from pipekit.clusters import Cluster
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import ScheduleError
from pipekit.searching.question import Found, Question
from pipekit.searching.rounds import Budget, SearchRounds
from pipekit.units import SECONDS, bytes_text, whole, written


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
    if cluster is not None:
        require_kind("cluster", cluster, Cluster, "pk.clusters.flat(4, bandwidth=1e9)")
    question = Question(
        profile,
        plan,
        cluster,
        memory_cap,
        len(plan.stages) if workers is None else whole("workers", workers),
        plan.microbatches if microbatches is None else whole("microbatches", microbatches),
        optimizer_states,
        None if placement is None else tuple(placement),
    )
    asked = [question]
    if memory_cap is not None and host_bytes_per_s is not None:
        asked.append(replace(question, host_bytes_per_s=host_bytes_per_s))
    methods = [each for one in asked for each in one.methods]
    frugal = min((max(each.peak_bytes) for each in methods), default=math.inf)
    bound_s = min(one.least_s for one in asked)
    budget, found = Budget(), list[Searched]()
    for left, one in zip(range(len(asked), 0, -1), asked, strict=True):
        budget.allow(1 / left, seconds)
        rounds = SearchRounds(one, budget, seed)
        rounds.run()
        if best := rounds.best:
            own_s = min(bound_s, best.makespan_s)
            found.append(
                Searched(**vars(best), bound_s=own_s, step=rounds.step, seconds=rounds.seconds)
            )
    if not found:
        raise ScheduleError(
            f"no schedule was found that fits: the most frugal method needs "
            f"{bytes_text(frugal)} on a worker; cut the model into more stages, recompute, or use "
            f"smaller microbatches"
        )
    return min(found, key=lambda each: each.makespan_s)
