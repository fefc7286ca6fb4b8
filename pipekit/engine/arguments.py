"""What the user passes in, checked before any worker starts; each error says the remedy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import le
from typing import Any, Protocol, cast, get_args

import torch

from pipekit.choices import require_choice
from pipekit.clusters import Cluster
from pipekit.devices import is_accelerator
from pipekit.engine.observers.observer import Observer, Watchers
from pipekit.names import TRANSPORTS
from pipekit.plans import Plan, Recompute
from pipekit.schedules import OPS, Op, Schedule, ScheduleError, check
from pipekit.schedules.beginning import beginning
from pipekit.staleness import Mitigation
from pipekit.units import plural


class Batches(Protocol):
    """Batches that can be counted before they are read."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


def require_callable(**functions: object) -> None:
    """Raise TypeError for the first that cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")


def require_callable_if_given(**functions: object) -> None:
    """Raise TypeError for the first that is neither None nor can be called."""
    require_callable(**{name: each for name, each in functions.items() if each is not None})


def require_timeout(timeout: float | None) -> None:
    """Raise ValueError unless it is a number of seconds, or None."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be more than 0 s, or None for never, not {timeout}")


def require_replicas(plan: Plan, schedule: Schedule) -> None:
    """Raise ValueError unless a schedule has a plan's workers (a short run may leave some idle)."""
    found = [len(workers) for workers in schedule.stage_workers]
    if schedule.worker_count == plan.workers and len(found) == len(plan.replicas):
        if all(map(le, found, plan.replicas)):
            return
    elif found == plan.replicas:  # it is not in their number that they differ
        raise ValueError(
            f"the plan has {plural(plan.workers, 'worker')} and the schedule "
            f"{schedule.worker_count}, of which some have several of the {len(found)} stages: a "
            f"plan gives each stage workers of its own; for its cuts alone pass "
            f"balance={plan.balance}"
        )
    raise ValueError(
        f"the plan has {plan.config} workers a stage and the schedule "
        f"{'-'.join(map(str, found))}: build it for the plan, e.g. "
        f"schedules.pipedream({plan.replicas})"
    )


def require_joint_updates(schedule: Schedule, reason: str) -> None:
    """Raise ScheduleError if the stages cannot make each update together."""
    try:
        check(schedule, joint_updates=True)
    except ScheduleError as error:
        raise ScheduleError(
            f"with {reason} the updates of a batch wait for one another, and so {error}"
        ) from None
    if len(set(schedule.excerpt().updates)) > 1:
        raise ScheduleError(
            f"with {reason} an update must sum the same microbatches on all stages: let every "
            f"stage update after the same ones"
        )


def require_every(every: int | None, checkpoints: object, keep: int) -> None:
    """Raise ValueError unless checkpoints can be written so often, and so many be kept."""
    if every is not None and checkpoints is None:
        raise ValueError("every says how often checkpoints are written: name their folder as well")
    if every is not None and every < 1:
        raise ValueError(f"every must be at least 1 batch, not {every}")
    if keep < 1:
        raise ValueError(f"keep must be at least 1 checkpoint, not {keep}")


def resolve_recompute(
    recompute: Recompute | Sequence[Recompute], schedule: Schedule
) -> list[Recompute]:
    """Return what each stage recomputes.

    Raises:
        ValueError: there is no such mode, a list of another length than there are stages, or a
            schedule in which a second forward would not be the first again.
    """
    stages = schedule.stages
    modes = [recompute] * stages if isinstance(recompute, str) else list(recompute)
    for mode in modes:
        require_choice("recompute", mode, get_args(Recompute))
    if len(modes) != stages:
        raise ValueError(
            f"recompute names {len(modes)} stages and the schedule has {stages}: name one of "
            f"{', '.join(get_args(Recompute))} for each"
        )
    if not schedule.stashing and any(mode != "never" for mode in modes):
        raise ValueError(
            "without weight stashing a recomputed forward would read other weights than the "
            "first did: use recompute='never'"
        )
    return modes


def require_mitigation(rule: object, stashing: bool, repeats: bool) -> None:
    """Raise TypeError or ValueError unless a mitigation goes with a schedule.

    Args:
        rule: what is done about stale weights.
        stashing: whether a backward reads the version of its forward.
        repeats: whether updates may be skipped, or made twice.
    """
    if not isinstance(rule, Mitigation):
        raise TypeError(
            f"mitigation must be a pipekit.staleness.Mitigation or the name of one, not "
            f"{type(rule).__name__}"
        )
    if rule.stashing not in (None, stashing):
        use = (
            "a schedule with weight stashing, as schedules.pipedream and two_bw are"
            if rule.stashing
            else "one without, e.g. schedules.pipedream(stages, stashing=False)"
        )
        raise ValueError(f"{rule} goes with other weight versions than this schedule's: use {use}")
    if repeats:
        raise ValueError(
            "a mitigation counts updates, of which a loss scale may skip some and "
            "validate='later' may make some twice: leave both out"
        )


def require_whole_rounds(rule: Mitigation | None, schedule: Schedule) -> None:
    """Raise ValueError if a rule has to know which weights an update's gradients were taken at,
    and a worker makes one to which it adds nothing itself.
    """
    if rule is None or not (rule.overrides("gradient") or rule.overrides("rate")):
        return
    some = beginning(schedule, 1) if schedule.period else schedule
    for tasks in some.workers:
        added = {
            (task.stage, some.update_of[task.stage][task.microbatch])
            for task in tasks
            if OPS[task.op].adds_gradient
        }
        for op, stage, _, version in tasks:
            if op is Op.UPDATE and (stage, version) not in added:
                raise ValueError(
                    f"with {rule} each worker of a stage needs a minibatch of each update, and of "
                    f"update {version} of stage {stage} one has none: train on a number of "
                    f"batches that is a multiple of the workers of each stage"
                )


def require_seed(
    seed: int | None, schedule: Schedule, transport: str, recompute: Sequence[Recompute]
) -> None:
    """Raise ValueError if layers cannot draw from the default generator as in a plain loop."""
    alone = schedule.worker_count == schedule.stages == 1 and TRANSPORTS[transport].in_process
    if seed is None and not (alone and recompute[0] == "never"):
        raise ValueError(
            "seed=None lets layers draw as in a plain loop, which takes one stage on one worker, "
            "transport='threads' and recompute='never': several would take turns at one generator "
            "in no fixed order; give a seed"
        )


def require_slowable(cluster: Cluster | None, transport: str, workers: int) -> None:
    """Raise ValueError if the links cannot be slowed down to a cluster's."""
    if cluster is None:
        return
    if not TRANSPORTS[transport].in_process:
        raise ValueError("links can be slowed between threads only: use transport='threads'")
    cluster.require_room(workers)


def length(batches: Iterable[Any]) -> int | None:
    """Return how many batches there are, if they say so."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:  # a generator, or a loader of a stream
        return None


def sized(batches: Iterable[Any]) -> Batches:
    """Return batches that can be counted; those of a generator are read at once.

    Raises:
        ValueError: there are none.
    """
    if length(batches) is None:
        batches = list(batches)
    if not length(batches):
        raise ValueError(NO_BATCHES)
    return cast(Batches, batches)


VALIDATE = ("first", "later")
"""When updates are validated."""


def require_repeatable(validate: str, transport: str, devices: Sequence[torch.device]) -> None:
    """Raise ValueError if forwards may have to be sent again, and the transport cannot do that."""
    on_accelerators = any(map(is_accelerator, devices))
    if validate == "later" and on_accelerators and not TRANSPORTS[transport].in_process:
        raise ValueError(
            'validate="later" may send activations a second time, for which NCCL has no tags: use '
            'transport="threads" between GPUs, or validate="first"'
        )


def counted(batches: Iterable[Any], steps: int | None) -> tuple[Batches, int | None]:
    """Return batches that can be counted, of which there may be fewer.

    Args:
        batches: the user's.
        steps: take so many at most, or None for all.

    Returns:
        The batches, and how many there have to be; None: there may be fewer than their length.

    Raises:
        ValueError: there are none.
    """
    known = length(batches)
    if steps is None or (known is not None and known <= steps):
        whole = sized(batches)
        return whole, len(whole)
    return _First(batches, steps), known and steps


NO_BATCHES = "there are no batches to run: pass at least one (input, target)"


class _First:
    """The first of some batches, as many as a run has at most."""

    def __init__(self, batches: Iterable[Any], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._batches, self._count)


def require_no_autocast(autocast: torch.dtype | None, devices: Iterable[torch.device]) -> None:
    """Raise ValueError within another ``torch.autocast``: each thread has its own."""
    for kind in {device.type for device in devices}:
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != autocast:
            raise ValueError(
                f"the call is within torch.autocast, in which workers would not be: leave it out, "
                f"and build the pipeline with autocast={torch.get_autocast_dtype(kind)}"
            )


def require_steps(steps: int | None) -> None:
    """Raise ValueError unless it is a number of batches, or None."""
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps must be at least 1 batch, or None for all, not {steps!r}")


def require_batches(batches: object) -> None:
    """Raise TypeError unless these can be batches, one after another."""
    if isinstance(batches, Mapping):
        raise TypeError("one batch is no iterable of batches: put it into a list")
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        raise TypeError(
            f"batches must be an iterable, e.g. a list of (input, target) or a DataLoader, not "
            f"{type(batches).__name__}"
        )


def require_watchers(observers: Watchers, transport: str) -> None:
    """Raise TypeError unless each observer can watch workers that a transport joins."""
    for each in observers:
        if isinstance(each, Observer):
            if not TRANSPORTS[transport].in_process:
                raise TypeError(
                    f"{type(each).__name__} lives in this process, where it cannot watch workers "
                    f"in others: pass a function that makes a worker's observer there, given its "
                    f"number, or use transport='threads'"
                )
        elif not callable(each):
            raise TypeError(
                f"an observer must be a pipekit.engine.Observer, or a function from a worker's "
                f"number to one, not {type(each).__name__}"
            )
