"""Every schedule with every feature, on 1, 2 and 4 devices: the CPU's bits, and no race.

A few of them are in ``make test``; all, with a table of their counts, in ``make devices``.
"""

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Op, Task
from tests.device.kind import careful, on, to_compare
from tests.device.test_pipeline import STAGES, build, skipping, tied
from tests.device.test_pipelined_module import compare as compare_modules
from tests.engine.examples import METHODS, data, different, images, mixed

DEVICES = [1, 2, 4]
TRACE = ["trace", "no trace"]


def split(schedule: pk.Schedule) -> pk.Schedule:
    """Each backward in two parts; that for the weights comes after the next one for the input."""

    def halves(tasks: Sequence[Task]) -> Iterator[Task]:
        late: list[Task] = []
        for task in tasks:
            if task.op is Op.BACKWARD:
                yield task._replace(op=Op.BACKWARD_INPUT)
                yield from late
                late = [task._replace(op=Op.BACKWARD_WEIGHT)]
            elif task.op is Op.UPDATE:
                yield from late
                yield task
                late = []
            else:
                yield task

    return pk.Schedule(tuple(tuple(halves(tasks)) for tasks in schedule.workers), "split")


def one_way(method: str) -> pk.Schedule:
    """Four stages, four microbatches a batch."""
    if method == "split":
        return split(schedules.flush(STAGES, 4).take(1)).repeat()
    return METHODS[method].schedule(STAGES, 4)


REPLICATED: dict[str, pk.Schedule] = {
    "gpipe": schedules.replicate(schedules.gpipe(2, 2), 2),
    "flush": schedules.replicate(schedules.flush(2, 2), 2),
    "pipedream": schedules.pipedream([2, 1]),
    "2bw": schedules.replicate(schedules.two_bw(2, 2), 2),
    "interleaved": schedules.replicate(schedules.interleaved(4, 2, workers=2), 2),
    "split": schedules.replicate(split(schedules.flush(2, 2).take(1)).repeat(), 2),
}


def plain() -> nn.Sequential:
    torch.manual_seed(8)
    layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.Tanh())]
    return nn.Sequential(*layers, nn.LayerNorm(6), nn.Linear(6, 3))


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {"model": plain},
    "recompute": {"model": mixed, "recompute": "always"},
    "replicas": {"model": skipping},
    "ties": {"model": tied},
    "skips": {"model": skipping},
    "autocast": {"model": mixed, "autocast": torch.bfloat16},
    "dropout": {"model": skipping, "recompute": "except_last"},
    "batch norm": {"model": images},
    "clipping": {"model": mixed, "clip_norm": 0.1},
    "loss scale": {"model": plain, "loss_scale": "dynamic"},
    "checkpoints": {"model": mixed},
    "evaluate": {"model": mixed},
}


def run(feature: str, method: str, devices: int, trace: bool) -> tuple[list[float], Any]:
    """Train with a feature; ``devices`` 0: to compare with.  Return losses and the state."""
    how = dict(FEATURES[feature])
    schedule = REPLICATED[method] if feature == "replicas" else one_way(method)
    workers = schedule.worker_count
    places = on(devices, workers) if devices else to_compare(workers)
    watched = {} if devices else careful()
    balance = [8 // schedule.stages] * schedule.stages
    torch.manual_seed(0)
    pipeline = build(how.pop("model")(), schedule, places, balance=balance, **how)
    if feature == "checkpoints":
        return checkpointed(pipeline, schedule, places, trace=trace, **watched)
    losses = [pipeline.evaluate(data(2))] if feature == "evaluate" else []
    for _ in range(2):
        losses += pipeline.train(data(3), watch=pk.Watch(trace=trace, **watched)).losses
        if feature == "evaluate":
            losses.append(pipeline.evaluate(data(2)))
            outputs = pipeline.predict([x for x, _ in data(2)])
            losses += torch.cat(outputs).flatten().tolist()
    return losses, pipeline.state_dict()


def checkpointed(
    pipeline: pk.Pipeline, schedule: Any, places: list[str], **how: Any
) -> tuple[list[float], Any]:
    """Write checkpoints there, and go on from the last one where results are compared."""
    with tempfile.TemporaryDirectory() as folder:
        watch = pk.Watch(**how)
        pipeline.train(data(3), checkpoints=pk.Checkpoints(folder, every=1), watch=watch)
        other = build(mixed(), schedule, to_compare(len(places)))
        other.resume(folder)
        other.train(data(3))  # is passed over
        losses = [loss for each in (pipeline, other) for loss in each.train(data(2)).losses]
    assert different(dict(pipeline.state_dict()), dict(other.state_dict())) == []
    return losses, other.state_dict()


@cache
def expected(feature: str, method: str) -> tuple[list[float], dict[str, Tensor]]:
    losses, state = run(feature, method, devices=0, trace=False)
    return losses, dict(state)


def some(*parameters: list[Any]) -> Iterator[Any]:
    """All combinations; one in 17 is unmarked, so that each value comes with many others."""
    numbers = count()
    for values in product(*parameters):
        marks = [] if next(numbers) % 17 == 0 else [pytest.mark.devices]
        yield pytest.param(*values, marks=marks)


@pytest.mark.parametrize(
    ("feature", "method", "devices", "trace"),
    list(some(list(FEATURES), list(REPLICATED), DEVICES, TRACE)),
)
def test_pipeline(feature: str, method: str, devices: int, trace: str) -> None:
    losses, state = run(feature, method, devices, trace == "trace")
    expected_losses, expected_state = expected(feature, method)
    assert different(expected_state, dict(state)) == []
    assert losses == expected_losses


# Without "order" autograd's threads decide in which order gradients are added: there results are
# equal up to rounding.
WITHOUT = {
    "nothing": [],
    "order": ["order"],
    "streams": ["streams"],
    "portals": ["portals"],
    "all": ["order", "streams", "portals"],
}
MODULES: dict[str, dict[str, Any]] = {
    "plain": {"model": plain, "checkpoint": "never"},
    "recompute": {"model": mixed, "checkpoint": "always"},
    "skips": {"model": skipping},
    "autocast": {"model": mixed, "autocast": True},
    "batch norm": {"model": images, "deferred_batch_norm": True},
    "other streams": {"model": mixed, "streams": "backward"},
}


@pytest.mark.parametrize(
    ("feature", "without", "devices", "trace"),
    list(some(list(MODULES), list(WITHOUT), DEVICES, TRACE)),
)
def test_module(feature: str, without: str, devices: int, trace: str) -> None:
    how = MODULES[feature] | {
        "without": WITHOUT[without],
        "watch": pk.Watch(trace=trace == "trace"),
    }
    compare_modules(devices, **how)
