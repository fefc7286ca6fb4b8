"""What a case is to pipekit: the one file of this folder that follows the toolkit's API.

An older commit is driven by the adapter that it has itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Op, Task
from pipekit.schedules.methods.by_name import METHODS

CHECKOUT = Path(pk.__file__).parents[1]
BasisRotation = pk.staleness.BasisRotation
DeferredBatchNorm = pk.DeferredBatchNorm
MeanOver = pk.MeanOver
Skippable = pk.skips.Skippable
stages = pk.stages

WITH_OPTIONS: dict[str, Callable[..., pk.Schedule]] = {
    "2bw": schedules.two_bw,
    "interleaved": schedules.interleaved,
}


def schedule(
    method: str,
    stages: int | Sequence[int],
    microbatches: int,
    *,
    replicas: int = 1,
    finite: int | None = None,
    **options: Any,
) -> pk.Schedule:
    """Return a method's schedule.

    Args:
        method: its name.
        stages: how many, or the workers of each.
        microbatches: in a batch.
        replicas: parallel pipelines.
        finite: for so many batches only.
        options: the method's own.
    """
    match method:
        case "asp":
            made = schedules.asp(**options)
        case "reversed gpipe":
            made = reversed_gpipe(stages, microbatches)
        case "pipedream":
            made = schedules.pipedream(stages, **options)
        case _ if options:
            made = WITH_OPTIONS[method](stages, microbatches, **options)
        case _:
            made = METHODS[method](stages, microbatches)
    made = made if replicas == 1 else schedules.replicate(made, replicas)
    return made if finite is None else made.take(finite)


def reversed_gpipe(stages: int, microbatches: int) -> pk.Schedule:
    """Return a user's own method: GPipe's Figure 2c, the backwards in reversed order."""

    def worker(stage: int) -> tuple[Task, ...]:
        batch = range(microbatches)
        return (
            *(Task(Op.FORWARD, stage, k, 0) for k in batch),
            *(Task(Op.BACKWARD, stage, k, 0) for k in reversed(batch)),
            Task(Op.UPDATE, stage, batch[-1], 1),
        )

    return pk.Schedule(tuple(map(worker, range(stages))), "reversed GPipe").repeat()


def pipeline(
    model: nn.Module,
    schedule: Any,
    optimizer: Callable[..., torch.optim.Optimizer],
    loss: Callable[..., Tensor],
    settings: Mapping[str, Any],
) -> Any:
    """Return a pipeline; ``settings`` are a case's, with functions in place of their names."""
    given = dict(settings)
    if isinstance(given.get("loss_scale"), Mapping):
        given["loss_scale"] = pk.LossScale(**given["loss_scale"])
    given["short_batches"] = "fewer"  # a case names it where it trains
    for argument, kind in (("updates", pk.Updates), ("execution", pk.Execution)):
        given[argument] = of_kind(kind, given)
    return pk.Pipeline(model, schedule, optimizer=optimizer, loss=loss, **given)


def of_kind(kind: Any, settings: dict[str, Any]) -> Any:
    """Return a value of options, with the settings that are its fields; they are taken away."""
    names = [field.name for field in fields(kind) if field.name in settings]
    return kind(**{name: settings.pop(name) for name in names})


def train(pipeline: Any, batches: Iterable[Any], told: list[Any], **settings: Any) -> Any:
    """Train; return what is known of the run.

    Args:
        pipeline: what trains.
        batches: on which.
        told: gets loss, learning rates and norm of each batch while it trains.
        settings: of the call, and ``stop_after`` so many batches.
    """
    last = settings.pop("stop_after", None)

    def on_batch(done: Any) -> bool:
        told.append((done.loss, done.learning_rates, done.gradient_norm))
        return len(told) == last

    settings.pop("short_batches", None)  # so are all
    if "checkpoints" in settings:
        folder = settings.pop("checkpoints")
        settings["checkpoints"] = of_kind(pk.Checkpoints, settings | {"folder": folder})
        settings.pop("every", None)
    settings["watch"] = of_kind(pk.Watch, settings)
    run = pipeline.train(batches, on_batch=on_batch, **settings)
    kept = ("losses", "microbatch_losses", "outputs", "loss_scales", "skipped_updates")
    return {name: getattr(run, name) for name in (*kept, "weight_slots", "peak_in_flight")}


def perform(pipeline: Any, call: str, *given: Any, metrics: bool = False, **how: Any) -> Any:
    """Do with a pipeline what is not training, and return what it gives."""
    match call:
        case "evaluate" if metrics:
            by_name = {"mse": nn.MSELoss(), "l1": nn.L1Loss()}
            return pipeline.evaluate(*given, by_name)
        case "predict":
            return pipeline.predict([x for x, _ in given[0]])
        case "rate":
            return pipeline.set_learning_rate(**how)
        case "load":
            return pipeline.load_state_dict(*given)
        case _:  # evaluate, resume, step_lr
            return getattr(pipeline, call)(*given, **how)


def module(layers: Any, balance: list[int], chunks: int, **how: Any) -> nn.Module:
    """Return a pipelined module."""
    return pk.PipelinedModule(layers, balance, chunks=chunks, **how)


def state(pipeline: Any) -> Any:
    """Return the weights and buffers, and what the optimizers keep."""
    return {"weights": pipeline.state_dict(), "optimizer": pipeline.optimizer_state()}
