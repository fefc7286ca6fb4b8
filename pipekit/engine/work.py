"""The work of one worker in a run: it trains or evaluates its stages, and reports."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

from torch import Tensor

from pipekit.devices import Clock, Mover, synchronize
from pipekit.engine.assignment import NotBuilt, WorkerAssignment, WorkerReport
from pipekit.engine.checkpoints.stage_parts import CheckpointWriter, restoring
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.offloading import OffloadingStage, offloading
from pipekit.engine.execution.pipeline_io import EvaluationIO, StageRuntime, TrainingIO
from pipekit.engine.execution.special_microbatches import PassingEmpty, in_chunks
from pipekit.engine.execution.stage import Stage, StageSource
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.execution.worker import Executor, observed, work_through
from pipekit.engine.feed import Feed
from pipekit.engine.observers.memory_tracker import MemoryTracker
from pipekit.engine.observers.observer import Observer, Observers, WorkerView, observers_of
from pipekit.engine.observers.record import TraceRecorder, recorded
from pipekit.engine.observers.reporter import Listener, Reporter
from pipekit.engine.transport import Transport
from pipekit.engine.updates.reducer import summing
from pipekit.layers.module_state import merged_put_back
from pipekit.schedules import Op, Step
from pipekit.trees import tree_map


def built(assignment: WorkerAssignment) -> WorkerAssignment:
    """Return an assignment whose stages are on the worker's device, or raise NotBuilt."""
    stages: dict[int, StageSource] = {}
    try:
        for number, each in assignment.stages.items():
            is_built = isinstance(each, Stage)  # in its last run
            stages[number] = each if is_built else each.config.build(assignment.device)
    except Exception as error:
        raise NotBuilt(error) from error.__cause__
    return replace(assignment, stages=stages)


def run(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: Transport,
    feed: Feed,
    on_news: Listener | None,
    watchers: Sequence[Observer] = (),
) -> WorkerReport:
    """Train the stages of an assignment, which are built, or evaluate, as configured."""
    if not config.training:
        return _evaluate(assignment, config, transport, feed, watchers)
    index, steps, device = assignment.index, assignment.steps, assignment.device
    stages = cast(Mapping[int, Stage], assignment.stages)
    for number, stage in stages.items():
        stage.prepare(steps.slots.get(number, 1), config.loss_versions, config.first_microbatch)
    io, errors = TrainingIO(config, feed), list[Exception]()
    clock = Clock(device)
    trace = TraceRecorder(clock) if config.watch.trace else None
    recompute = {number: stage.recompute for number, stage in stages.items()}
    memory = MemoryTracker(recompute) if config.watch.memory else None
    observers = [*watchers, *filter(None, (trace, memory))]
    if on_news and len(config.table.stage_workers) - 1 in stages:
        observers.append(Reporter(on_news, config, memory.held_bytes if memory else lambda: None))
    if config.watch.observers:
        observers += observers_of(config.watch.observers, index)
    if config.checkpoints:
        about = assignment, config, io.losses, transport.stop_point, errors
        observers += [CheckpointWriter(n, each, *about) for n, each in stages.items()]
    observer = Observers(observers)
    weights = {number: stage.weights for number, stage in stages.items()}
    updates = UpdateSynchronizer(index, stages, config, transport, device, observer)
    runtimes: Mapping[int, StageRuntime] = stages
    movable: dict[int, OffloadingStage] = {}
    if config.table.moves and any(step.task.op.moves for step in steps.distinct):
        mover = Mover(device)
        movable = {number: OffloadingStage(stage, mover) for number, stage in stages.items()}
        runtimes = movable
    if config.execution.short_batches == "fewer":
        runtimes = {number: PassingEmpty(stage) for number, stage in runtimes.items()}
    executor = Executor(index, runtimes, transport, io, device, observer, updates=updates)
    execute: Callable[[Step], None] = executor.execute
    if updates.reducer:
        execute = summing(execute, updates.reducer)
    if assignment.chunks > 1:
        execute = in_chunks(execute, assignment.chunks)
    if movable:
        execute = offloading(execute, movable, assignment, observer)
    if config.resumed:
        execute = restoring(execute, config, index, stages, io.losses)
    view = WorkerView(index, device, clock, weights, updates.waiting_bytes)
    survives = partial(_survives, config, transport, errors)
    transport.stop_point.at(config.end)
    at_end = closing(updates) if updates.comm_thread else nullcontext()
    with at_end, observed(observer, view):
        until = steps.until(transport.stop_point)
        work_through(until, index, execute, transport, observer, survives)
        if updates.comm_thread:
            updates.average_statistics()
    transport.finish()
    synchronize(device)  # whoever reads what is left does so in another stream
    io.losses.wait()
    scaler = next(iter(stages.values())).scaler if stages else None  # all stages' are alike
    return WorkerReport(
        stages=stages,
        record=recorded(trace, memory),
        losses=io.losses,
        weight_slots=sum(len(stage.weights.modules) for stage in stages.values()),
        most_pending=executor.most_pending,
        sent_bytes=executor.sent_bytes + updates.sent_bytes(),
        loss_scales=scaler.scales if scaler else [],
        skipped=scaler.skipped if scaler else [],
        results=sorted(io.outputs.items()),
        end=transport.stop_point.microbatch,
        error=errors[0] if errors else None,
    )


def _survives(
    config: RunConfig, transport: Transport, errors: list[Exception], step: Step, error: Exception
) -> bool:
    """End the run before the batch of a failed forward: no update has seen any of it."""
    # Workers that share a stage may be summing what the others then never give.
    if config.table.shared or step.task.op is not Op.FORWARD:
        return False
    cut = config.possible_stops.before(step.task.microbatch)
    if cut is None or not transport.end(cut):
        return False
    errors.append(error)
    return True


def _evaluate(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: Transport,
    feed: Feed,
    watchers: Sequence[Observer],
) -> WorkerReport:
    index, device = assignment.index, assignment.device
    ends = EvaluationIO(config, feed, device)
    view = WorkerView(index, device, Clock(device), {}, int)
    transport.stop_point.at(config.end)
    with ExitStack() as kept:
        for each in assignment.inference:
            kept.enter_context(merged_put_back(each.part.module.to(device)))
        stages = {each.part.index: each.build(device) for each in assignment.inference}
        for stage in stages.values():
            stage.begin(config.first_microbatch)
        observer = Observers(watchers)
        executor = Executor(index, stages, transport, ends, device, observer)
        steps = assignment.steps.until(transport.stop_point)
        with observed(observer, view):
            work_through(steps, index, executor.execute, transport, observer)
        transport.finish()
        synchronize(device)
        return WorkerReport(
            rows=feed.rows(),
            weight_slots=len(assignment.inference),
            results=[(k, tree_map(Tensor.cpu, value)) for k, value in ends.results],
        )
