"""One ``train`` call after another: nothing is built again that need not be."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit import schedules
from pipekit.engine.runs import tables
from tests.engine.examples import data, different, mixed, mlp, pipeline


def test_optimizers_and_tables_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Optimizer] = []

    def optimizer(parameters: list[nn.Parameter]) -> Optimizer:
        made.append(torch.optim.Adam(parameters))
        return made[-1]

    lowered: list[bool] = []

    def lower(schedule: schedules.Schedule, *_: Any) -> Any:
        lowered.append(schedule.trains)
        return schedules.lower(schedule, *_)

    monkeypatch.setattr(tables, "lower", lower)
    schedule = schedules.two_bw(2, 4)
    pipe = pipeline(mlp(6, 6, 3), schedule, [1, 1], optimizer=optimizer)
    for _ in range(3):
        pipe.train(data(2))
        pipe.evaluate(data(1))
    assert len(made) == 2, "one for each stage"
    assert lowered == [True, False], "for training, and for inference"


def test_processes_keep_their_stages_until_they_are_others(tmp_path: Path) -> None:
    """What they would have been sent again is what they have: the bits are those of threads."""

    here = os.getpid()

    def optimizer(parameters: list[nn.Parameter]) -> Optimizer:
        if os.getpid() != here:  # where it is only asked whether stages may each have one
            with (tmp_path / "made").open("a", encoding="ascii") as file:
                file.write("x")
        return torch.optim.Adam(parameters)

    def often(transport: str) -> dict[str, Tensor]:
        pipe = pipeline(
            mixed(), schedules.flush(2, 2), [4, 4], optimizer=optimizer, transport=transport
        )
        for _ in range(2):
            pipe.train(data(2), checkpoints=tmp_path / transport)
            pipe.evaluate(data(1))
        pipe.train(data(1))
        made.append((tmp_path / "made").read_text(encoding="ascii"))
        pipe.close()
        pipe.train(data(1))
        made.append((tmp_path / "made").read_text(encoding="ascii"))
        pipe.resume(tmp_path / transport)  # two runs of two batches
        pipe.train(data(2))
        return dict(pipe.state_dict())

    made: list[str] = []
    first = often("distributed")
    assert [*map(len, made)] == [2, 4], "of each stage one, and again in new processes"
    assert different(first, often("threads")) == []


def test_evaluation_builds_no_optimizer() -> None:
    def refusing(parameters: list[nn.Parameter]) -> Optimizer:
        raise AssertionError("nobody trains")

    pipe = pipeline(mlp(6, 6, 3), schedules.flush(2, 2), [1, 1], optimizer=refusing)
    assert pipe.evaluate(data(2)) > 0
