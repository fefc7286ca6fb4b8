"""The work of one worker in a run: it trains or evaluates its stages, and reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice

from torch import Tensor

from pipekit.devices import Clock, synchronize
from pipekit.engine.assignment import WorkerAssignment, WorkerReport
from pipekit.engine.batches import Feed
from pipekit.engine.config import RunConfig
from pipekit.engine.execution.executor import Executor
from pipekit.engine.execution.pipeline_io import EvaluationIO, TrainingIO
from pipekit.engine.execution.stage import Stage
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.execution.worker import Worker
from pipekit.engine.observers.observer import Observer, WorkerView, observers_of
from pipekit.engine.observers.record import TrafficCounter, WorkerRecording
from pipekit.engine.observers.reporter import Listener, Reporter
from pipekit.engine.parts.checkpoint_writing import CheckpointWriting
from pipekit.engine.parts.chunked_sequences import ChunkedSequences
from pipekit.engine.parts.empty_microbatches import EmptyMicrobatches
from pipekit.engine.parts.late_validation import LateValidation
from pipekit.engine.parts.offloading import Offloading
from pipekit.engine.parts.part import Execute, Part, WorkerRun
from pipekit.engine.parts.recomputation import Recomputation
from pipekit.engine.parts.restoring import Restoring
from pipekit.engine.transport import StoppableTransport
from pipekit.layers.modes import merged_put_back
from pipekit.schedules import Op, Step, Steps
from pipekit.schedules.lowering.lower import slot_count
from pipekit.trees import tree_map


def parts_of(run: WorkerRun) -> list[Part]:
    """Return the run's features, in order from the worker's loop to the executor.

    Each wraps transport, pipeline ends and stages around those before it.
    """
    config = run.config
    ops = {step.task.op for step in run.assignment.steps.distinct}
    used: dict[type[Part], bool] = {
        Restoring: config.resume is not None,
        LateValidation: run.assignment.validation is not None,
        ChunkedSequences: run.assignment.chunks > 1,
        Offloading: any(op.moves for op in ops),
        Recomputation: any(mode != "never" for mode in run.recompute.values())
        or Op.RECOMPUTE in ops,
        EmptyMicrobatches: config.execution.short_batches == "fewer",
        CheckpointWriting: config.checkpoints is not None,
    }
    return [part(run) for part, is_used in used.items() if is_used]


def run(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: StoppableTransport,
    feed: Feed,
    on_news: Listener | None,
    watchers: Sequence[Observer] = (),
    stages: Mapping[int, Stage] | None = None,
) -> WorkerReport:
    """Train or evaluate, as configured; ``stages`` are those to train, None: they are built."""
    if not config.training:
        return _evaluate(assignment, config, transport, feed, watchers)
    stages = assignment.build() if stages is None else stages
    return _train(assignment, stages, config, transport, feed, on_news, watchers)


def _train(
    assignment: WorkerAssignment,
    stages: Mapping[int, Stage],
    config: RunConfig,
    transport: StoppableTransport,
    feed: Feed,
    on_news: Listener | None,
    watchers: Sequence[Observer],
) -> WorkerReport:
    """Execute a worker's steps in training, and report."""
    index, steps, device = assignment.index, assignment.steps, assignment.device
    for number, stage in stages.items():
        stage.prepare(slot_count(steps, number), config.loss_versions, keep=config.table.begin > 0)
    io = TrainingIO(config, feed)
    run = WorkerRun(
        assignment,
        config,
        trained=stages,
        stages=stages,
        recompute=assignment.recompute,
        transport=transport,
        ends=io,
        io=io,
        stop_point=transport.stop_point,
        observers=[*watchers],
        errors=[],
    )
    recording, traffic = WorkerRecording(config.watch, run.recompute, device), TrafficCounter()
    run.observers += [*recording.observers, traffic]
    if on_news and len(config.table.stage_workers) - 1 in stages:
        held = recording.memory.held_bytes if recording.memory else lambda: None
        run.observers.append(Reporter(on_news, config, held))
    run.observers += observers_of(config.watch.observers, index)
    parts = parts_of(run)
    updates = UpdateSynchronizer(index, stages, config, transport, device, run.observers)
    executor = Executor(
        index,
        run.stages,
        run.recompute,
        run.transport,
        run.ends,
        device,
        updates=updates,
        observers=run.observers,
        first_microbatch=config.first_microbatch,
    )
    execute: Execute = executor.execute
    for part in reversed(parts):
        execute = part.around(execute, executor, updates)

    def conclude() -> None:
        for part in parts:
            part.conclude()
        updates.average_statistics()

    weights = {number: stage.weights for number, stage in stages.items()}
    view = WorkerView(index, device, Clock(device), weights, updates.waiting_bytes)
    survives = partial(_survives, run, transport)
    worker = Worker(view, execute, transport, run.observers, conclude, survives)
    transport.stop_point.at(config.end)
    try:
        worker.run(transport.stop_point.until(steps))
    finally:
        weights_bytes = updates.close()
    transport.finish()
    synchronize(device)  # whoever reads what is left does so in another stream
    io.losses.wait()
    recording.note_peak()
    scaler = next((stage.scaler for stage in stages.values()), None)  # all stages' are alike
    return WorkerReport(
        stages=[stage.to_config(config.keeps) for stage in run.trained.values()],
        record=recording.record(),
        losses=io.losses,
        weight_slots=sum(len(stage.weights.modules) for stage in stages.values()),
        most_pending=_most_pending(steps, config, transport.stop_point.microbatch),
        rows=feed.rows,
        sent_bytes=traffic.sent_bytes
        + Counter({(to, "weights"): n for to, n in weights_bytes.items()}),
        loss_scales=scaler.scales if scaler else [],
        skipped=scaler.skipped if scaler else [],
        results=sorted(io.outputs.items()),
        end=transport.stop_point.microbatch,
        error=run.errors[0] if run.errors else None,
    )


def _survives(run: WorkerRun, transport: StoppableTransport, step: Step, error: Exception) -> bool:
    """End the run before the batch of a failed forward: no update has seen any of it."""
    # Workers that share a stage may be summing what the others then never give.
    shared = any(len(workers) > 1 for workers in run.config.table.stage_workers)
    if shared or step.task.op is not Op.FORWARD:
        return False
    cut = run.config.possible_stops.before(step.task.microbatch)
    if cut is None or not transport.end(cut):
        return False
    run.errors.append(error)
    return True


def _evaluate(
    assignment: WorkerAssignment,
    config: RunConfig,
    transport: StoppableTransport,
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
