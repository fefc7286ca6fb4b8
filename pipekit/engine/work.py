"""The work of one worker in a run: it trains or evaluates its stages, and reports."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice

from torch import Tensor

from pipekit.devices import Clock, Mover, synchronize
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.checkpoints.stage_parts import CheckpointWriter, restoring
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.offloading import OffloadingStage, offloading
from pipekit.engine.execution.pipeline_io import EvaluationIO, StageRuntime, TrainingIO
from pipekit.engine.execution.special_microbatches import PassingEmpty, in_chunks
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.execution.worker import Executor, Worker
from pipekit.engine.feed import Feed
from pipekit.engine.observers.observer import Observer, WorkerView, observers_of
from pipekit.engine.observers.record import TrafficCounter, WorkerRecording
from pipekit.engine.observers.reporter import Listener, Reporter
from pipekit.engine.transport import Transport
from pipekit.layers.python_state import merged_put_back
from pipekit.schedules import Op, Step, Steps
from pipekit.schedules.lowering.lower import slot_count
from pipekit.trees import tree_map


def run(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: Transport,
    feed: Feed,
    on_news: Listener | None,
    watchers: Sequence[Observer] = (),
) -> WorkerReport:
    """Train or evaluate, as configured."""
    if not config.training:
        return _evaluate(assignment, config, transport, feed, watchers)
    return _train(assignment, config, transport, feed, on_news, watchers)


def _train(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: Transport,
    feed: Feed,
    on_news: Listener | None,
    watchers: Sequence[Observer],
) -> WorkerReport:
    """Execute a worker's steps in training, and report."""
    index, steps, device = assignment.index, assignment.steps, assignment.device
    stages = assignment.build()
    for number, stage in stages.items():
        stage.prepare(slot_count(steps, number), config.loss_versions)
    io, errors = TrainingIO(config, feed), list[Exception]()
    recompute = {number: stage.mode for number, stage in stages.items()}
    recording = WorkerRecording(config.watch, recompute, device)
    traffic = TrafficCounter()
    observers = [*watchers, *recording.observers, traffic]
    if on_news and len(config.table.stage_workers) - 1 in stages:
        held = recording.memory.held_bytes if recording.memory else lambda: None
        observers.append(Reporter(on_news, config, held))
    observers += observers_of(config.watch.observers, index)
    if config.checkpoints:
        about = assignment, config, io.losses, transport.stop_point, errors
        observers += [CheckpointWriter(stage, *about) for stage in stages.values()]
    weights = {number: stage.weights for number, stage in stages.items()}
    updates = UpdateSynchronizer(index, stages, config, transport, device, observers)
    runtimes: Mapping[int, StageRuntime] = stages
    movable: dict[int, OffloadingStage] = {}
    if any(step.task.op.moves for step in steps.distinct):
        mover = Mover(device)
        movable = {n: OffloadingStage(each, stages[n], mover) for n, each in runtimes.items()}
        runtimes = movable
    if config.execution.short_batches == "fewer":
        runtimes = {number: PassingEmpty(stage) for number, stage in runtimes.items()}
    execute: Callable[[Step], None] = Executor(
        index,
        runtimes,
        recompute,
        transport,
        io,
        device,
        updates=updates,
        observers=observers,
        first_microbatch=config.first_microbatch,
    ).execute
    if assignment.chunks > 1:
        execute = in_chunks(execute, assignment.chunks)
    if movable:
        execute = offloading(execute, movable, assignment, config.first_microbatch, observers)
    if config.resume:
        execute = restoring(execute, config.resume, index, stages, io.losses)
    view = WorkerView(index, device, Clock(device), weights, updates.waiting_bytes)
    survives = partial(_survives, config, transport, errors)
    conclude = updates.average_statistics if updates.shares else None
    worker = Worker(view, execute, transport, observers, conclude, survives)
    transport.stop_point.at(config.end)
    try:
        worker.run(transport.stop_point.until(steps))
    finally:
        if updates.shares:
            updates.close()
    transport.finish()
    synchronize(device)  # whoever reads what is left does so in another stream
    io.losses.wait()
    recording.note_peak()
    scaler = next((stage.scaler for stage in stages.values()), None)  # all stages' are alike
    return WorkerReport(
        stages=[*stages.values()],
        record=recording.record(),
        losses=io.losses,
        weight_slots=sum(len(stage.weights.modules) for stage in stages.values()),
        most_pending=_most_pending(steps, config, transport.stop_point.microbatch),
        rows=feed.rows,
        sent_bytes=traffic.sent_bytes + updates.sent_bytes(),
        loss_scales=scaler.scales if scaler else [],
        skipped=scaler.skipped if scaler else [],
        results=sorted(io.outputs.items()),
        end=transport.stop_point.microbatch,
        error=errors[0] if errors else None,
    )


def _survives(
    config: RunConfig,
    transport: Transport,
    errors: list[Exception],
    step: Step,
    error: Exception,
) -> bool:
    """End the run before the batch of a failed forward: no update has seen any of it."""
    # Workers that share a stage may be summing what the others then never give.
    shared = any(len(workers) > 1 for workers in config.table.stage_workers)
    if shared or step.task.op is not Op.FORWARD:
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
    """Execute a worker's forwards; the results are the loss function's values."""
    index, device = assignment.index, assignment.device
    ends = EvaluationIO(config, feed, device)
    observers = [*watchers, *observers_of(config.watch.observers, index)]
    view = WorkerView(index, device, Clock(device), {}, int)
    transport.stop_point.at(config.end)
    with ExitStack() as kept:
        for each in assignment.inference:
            kept.enter_context(merged_put_back(each.part.module.to(device)))
        executor = Executor(
            index,
            {each.part.index: each.build(device) for each in assignment.inference},
            {},
            transport,
            ends,
            device,
            observers=observers,
            first_microbatch=config.first_microbatch,
            training=False,
        )
        steps = transport.stop_point.until(assignment.steps)
        Worker(view, executor.execute, transport, observers).run(steps)
        transport.finish()
        synchronize(device)
        return WorkerReport(
            rows=feed.rows,
            weight_slots=len(assignment.inference),
            results=[(k, tree_map(Tensor.cpu, value)) for k, value in ends.results],
        )


def _most_pending(steps: Steps, config: RunConfig, end: int) -> int:
    """Return the most microbatches, of all stages, that wait for their backward at once."""
    done = config.resume.boundary.microbatches if config.resume else 0
    pending = most = 0
    # A run that goes on fills the pipeline anew, which takes no more steps than at the beginning.
    for step in islice(steps.until(lambda: end), 2 * len(steps.distinct)):
        op = step.task.op
        if step.task.microbatch >= done:
            pending += (op is Op.FORWARD) - op.adds_gradient
            most = max(most, pending)
    return most
