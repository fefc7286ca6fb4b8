"""Checks of the user's arguments before any worker starts; each error says the remedy."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from operator import le
from typing import Any, get_args

from pipekit.engine.batches import copied
from pipekit.engine.execution.stage import StageConfig
from pipekit.engine.observers.observer import Observer, Watchers
from pipekit.names import TRANSPORTS
from pipekit.plans import Plan, Recompute
from pipekit.schedules import Op, Schedule, ScheduleError, Task, check
from pipekit.schedules.messages import MessageChannel, check_messages, with_messages
from pipekit.schedules.ops import ACTIVATIONS, OFFLOADED, PASSES
from pipekit.schedules.schedule import beginning
from pipekit.staleness import Mitigation


def require_replicas(plan: Plan, schedule: Schedule) -> None:
    """Raise ValueError unless a schedule has a plan's workers (a short run may leave some idle)."""
    found = [len(workers) for workers in schedule.stage_workers]
    same = schedule.worker_count == plan.workers and len(found) == len(plan.replicas)
    if same and all(map(le, found, plan.replicas)):
        return
    raise ValueError(
        f"the plan has {plan.config} workers a stage, each with one stage, and the schedule "
        f"{'-'.join(map(str, found))}, on {schedule.worker_count} workers: build it for the plan, "
        f"e.g. schedules.pipedream({plan.replicas}), or for its cuts alone pass "
        f"balance={plan.balance}"
    )


def resolve_recompute(
    recompute: Recompute | Sequence[Recompute], stages: int
) -> tuple[Recompute, ...]:
    """Return the recompute mode of each stage; raises ValueError for another length."""
    modes = (recompute,) * stages if isinstance(recompute, str) else tuple(recompute)
    if len(modes) != stages:
        raise ValueError(
            f"recompute names {len(modes)} stages and the schedule has {stages}: name one of "
            f"{', '.join(get_args(Recompute))} for each"
        )
    return modes


def require_whole_rounds(rule: Mitigation, schedule: Schedule) -> None:
    """Raise ValueError if a mitigation needs the weights behind each gradient of an update, and
    some worker makes an update to which it adds no gradient.
    """
    if not (rule.overrides("gradient") or rule.overrides("rate")):
        return
    some = beginning(schedule, 1)
    for tasks in some.workers:
        added = {
            (task.stage, some.update_of[task.stage][task.microbatch])
            for task in tasks
            if task.op.adds_gradient
        }
        for op, stage, _, version in tasks:
            if op is Op.UPDATE and (stage, version) not in added:
                raise ValueError(
                    f"with {rule} each worker of a stage needs a minibatch of each update, and of "
                    f"update {version} of stage {stage} one has none: train on a number of "
                    f"batches that is a multiple of the workers of each stage"
                )


def require_weights_as_read(
    needed: Sequence[tuple[int, str]], stages: Sequence[StageConfig], schedule: Schedule
) -> None:
    """Raise ValueError if forwards edit weights (layer, name) that earlier backwards need."""
    some = beginning(schedule, 2)
    for layer, name in needed:
        stage = [each for each in stages if each.passes.part.first_layer <= layer][-1]
        under_way = (_is_shared(stage.passes.part.index, tasks) for tasks in some.workers)
        if stage.passes.recompute == "never" and any(under_way):
            raise ValueError(
                f"the forward of layer {layer} edits {name!r}, which the backward of an earlier "
                f"microbatch still needs: compute with it under torch.no_grad() (what a momentum "
                f"encoder makes needs no gradient), or choose a schedule or balance with one "
                f"microbatch under way on this stage"
            )


def _is_shared(stage: int, tasks: Iterable[Task]) -> bool:
    """Return whether two microbatches are under way on a stage with the same weight version."""
    versions: dict[int, int] = {}  # by microbatch
    for op, index, microbatch, version in tasks:
        if index == stage and op is Op.FORWARD:
            if version in versions.values():
                return True
            versions[microbatch] = version
        elif index == stage and op.adds_gradient:
            versions.pop(microbatch, None)
    return False


def length(batches: Iterable[Any]) -> int | None:
    """Return the number of batches, or None if they have no length."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:  # a generator, or a loader of a stream
        return None


def counted(
    batches: Iterable[Any], steps: int | None = None
) -> tuple[Iterable[Any], int, int | None]:
    """Return batches, at most ``steps``; their largest number; and the exact one, if it is known.

    A generator without ``steps`` is read.  ValueError: there are none.
    """
    known = length(batches)
    if known is None and steps is None:
        batches = [*map(copied, batches)]  # the next one may be in the same memory
        known = len(batches)
    if known == 0:
        raise ValueError(NO_BATCHES)
    if known is not None and (steps is None or known <= steps):
        return batches, known, known
    assert steps is not None
    return islice(batches, steps), steps, known and steps


NO_BATCHES = "there are no batches to run: pass at least one (input, target)"


def require_batches(batches: object, steps: int | None = None) -> None:
    """Raise TypeError unless these are iterable as batches, ValueError for wrong ``steps``."""
    if steps is not None and (not isinstance(steps, Integral) or steps < 1):
        raise ValueError(f"steps must be at least 1 batch, or None for all, not {steps!r}")
    if isinstance(batches, Mapping):
        raise TypeError("batches are a single batch: put it into a list")
    if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
        raise TypeError(
            f"batches must be an iterable, e.g. a list of (input, target) or a DataLoader, not "
            f"{type(batches).__name__}"
        )


def require_watchers(observers: Watchers, transport: str) -> None:
    """Raise TypeError unless each observer can watch the workers of a transport."""
    if isinstance(observers, Observer) or callable(observers):
        raise TypeError("observers must be a list, also of one: pass Watch(observers=[...])")
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


def offloads(op: Op) -> bool:
    """Return whether an op moves activations to the host or to a partner, or back from there."""
    return {op.takes, op.gives} == {(ACTIVATIONS,), (OFFLOADED,)}


def checked(schedule: Schedule) -> Schedule:
    """Return a schedule that can train; raise TypeError or ScheduleError for another."""
    check(schedule)
    if not schedule.trains:
        raise ScheduleError("the schedule has no backward: it cannot train")
    require_runnable(schedule)
    return schedule


def require_no_hang(schedule: Schedule) -> None:
    """Raise ScheduleError if processes could wait for one another's messages for ever.

    Between two of them messages go in one order (transports/distributed.py).
    """
    verdict = check_messages(with_messages(schedule, "pipekit"), MessageChannel(waits=False))
    if not verdict.is_sound:
        raise ScheduleError(f"{verdict}: train with transport='threads', or reorder the tasks")


def require_runnable(schedule: Schedule, runner: str = "Pipeline", trains: bool = True) -> None:
    """Raise ScheduleError for what a ``runner`` cannot run; one that ``trains`` can run more."""
    for number, tasks in enumerate((*schedule.head, *schedule.period)):
        for task in tasks:
            op, worker = task.op, number % schedule.worker_count
            computed = op in PASSES or op in (Op.UPDATE, Op.RECOMPUTE)
            if not computed and not (trains and offloads(op)):
                raise ScheduleError(
                    f"worker {worker} has {task} ({op.name}), which {runner} cannot run: draw, "
                    f"check and simulate the schedule, or leave its {op.letter} out",
                )
    is_split = Op.BACKWARD_INPUT in schedule.ops
    if schedule.chunks > 1 and (is_split or not trains):
        how = "with backwards in two parts, " if is_split else ""
        raise ScheduleError(
            f"{schedule.title} cuts each microbatch into {schedule.chunks} chunks of its sequence, "
            f"{how}which {runner} cannot run: draw, check and simulate it, or use chunks=1"
        )
