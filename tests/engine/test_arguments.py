"""Arguments and options, checked before any worker starts; other refusals: test_failures."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit import (
    Checkpoints,
    Execution,
    Pipeline,
    PipelinedModule,
    ScheduleError,
    Updates,
    Watch,
    schedules,
)
from pipekit.engine import arguments
from pipekit.engine.calls import MOVED
from pipekit.schedules import DISCARD, GATHER, Op, Schedule, check
from pipekit.schedules.ops import ACTIVATIONS
from tests.engine.examples import data, mlp, nesterov
from tests.engine.execution.moving_tables import fill_and_drain

F, B = Op.FORWARD, Op.BACKWARD
GATHERED = Schedule.one_batch(
    "gathered", [[(GATHER, 0, 0), (F, 0, 0), (DISCARD, 0, 0), (GATHER, 0, 0), (B, 0, 0)]]
)
CHUNKED = replace(
    Schedule.one_batch("cut", [[(F, 0, 0), (F, 0, 1), (B, 0, 1), (B, 0, 0)]]), chunks=2
)


def test_batches_with_a_length_are_left_unread() -> None:
    class Loud:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read")

    loud = Loud()
    assert arguments.counted(loud) == (loud, 2, 2)


def test_a_generator_is_read() -> None:
    assert arguments.counted(n for n in range(3)) == ([0, 1, 2], 3, 3)


COMPRESS = Op("N", "COMPRESS", takes=(ACTIVATIONS,), gives=(ACTIVATIONS,))
COMPRESSED = Schedule.one_batch("compressed", [[(F, 0, 0), (COMPRESS, 0, 0), (B, 0, 0)]])


@pytest.mark.parametrize(
    ("schedule", "task"),
    [(GATHERED, r"G0 of stage 0 \(UNSHARD\)"), (COMPRESSED, r"N0 of stage 0 \(COMPRESS\)")],
)
def test_other_ops_are_refused_when_the_pipeline_is_built(schedule: Schedule, task: str) -> None:
    check(schedule)
    said = (
        rf"^worker 0 has {task}, which Pipeline cannot run: draw, check and "
        rf"simulate the schedule, or leave its {task[0]} out$"
    )
    with pytest.raises(ScheduleError, match=said):
        pk.Pipeline(mlp(6, 3), schedule, optimizer=nesterov, loss=nn.MSELoss())


def test_emulation_moves_nothing_and_says_so() -> None:
    profile = pk.Profile.uniform(2)
    with pytest.raises(ScheduleError, match=r"O0 of stage 0 .* which emulate cannot run"):
        pk.emulate(fill_and_drain(2, 2, [0]), profile)
    with pytest.raises(ScheduleError, match="2 chunks of its sequence, which emulate cannot run"):
        pk.emulate(CHUNKED, pk.Profile.uniform(1))


def build(**options: Any) -> Pipeline:
    how: dict[str, Any] = {"optimizer": nesterov, "loss": nn.MSELoss()}
    return Pipeline(mlp(6, 3), schedules.flush(1, 2), **how, **options)


@pytest.mark.parametrize("name", MOVED)
def test_a_field_by_its_name_alone_is_answered_by_the_call_to_write(name: str) -> None:
    for call in (build, lambda **given: build().train(data(1), **given)):
        with pytest.raises(TypeError) as caught:
            call(**{name: 1})
        assert str(caught.value) == MOVED[name]


@pytest.mark.parametrize(
    ("value", "field", "given", "message"),
    [
        (Updates, "lr_step", "epoch", "lr_step must be one of update, call"),
        (Updates, "loss_scale", "static", "a number, 'dynamic', a pipekit.LossScale or None"),
        (Updates, "mitigation", "hope", "mitigation must be one of"),
        (Execution, "inputs", [0, 1], r"not \[0, 1\]: inputs=lambda batch: \(batch\[0\]"),
        (Execution, "rows", {"labels": 0}, r"as {'labels': True}, not {'labels': 0}"),
        (Execution, "rows", ["labels"], r"as {'labels': True}, not \['labels'\]"),
        (Execution, "autocast", torch.int8, "not torch.int8"),
        (Execution, "recompute", "sometimes", "never, except_last, always"),
        (Execution, "recompute", ["never", "now"], "not 'now'"),
        (Execution, "recompute", True, "never, except_last, always, not True"),
        (Execution, "cluster", "v100", "a pipekit.Cluster, or None, not 'v100'"),
        (Execution, "short_batches", "skip", "refuse, fewer"),
        (Execution, "timeout", 0, "more than 0 s, or None for never, not 0"),
        (Execution, "timeout", "1", "more than 0 s, or None for never, not '1'"),
        (Updates, "clip_norm", "1", "at least 0, or None, not '1'"),
        (pk.LossScale, "growth", "2", "a loss scale is made of numbers"),
        (Checkpoints, "folder", "", "must name a folder, '.' for the current one, not ''"),
        (partial(Checkpoints, "folder"), "every", 0, "every must be at least 1 batch, not 0"),
        (partial(Checkpoints, "folder"), "keep", 1.5, "at least 1 checkpoint, not 1.5"),
        (build, "seed", 1.5, "seed must be a whole number, 'torch' or None, not 1.5"),
        (build, "balance", 2, "how many layers each stage has"),
        (build, "execution", Execution(devices="cpu"), r"for each worker: \['cpu'\] \* 1"),
    ],
)
def test_a_value_checks_its_fields(value: Any, field: str, given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value(**{field: given})


@pytest.mark.parametrize(("field", "given"), [("groups", 3), ("lr_scheduler", "cosine")])
def test_a_function_must_be_one(field: str, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} must be a function"):
        Updates(**{field: given})
    with pytest.raises(TypeError, match=r"a pipekit.staleness.Mitigation or the name of one"):
        Updates(mitigation=given if callable(given) else 3)  # type: ignore[arg-type]


def test_a_module_shows_no_bar() -> None:
    with pytest.raises(ValueError, match="leave progress and outputs out of watch"):
        PipelinedModule(mlp(6, 3), [1], chunks=1, watch=Watch(progress=True))
