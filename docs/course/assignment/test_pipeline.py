"""The grader of the assignment: orders by pipekit's tables, weights by the papers' equations."""

import random
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pipeline
import pytest
import torch
from torch import Tensor, nn

from pipekit import oracle, schedules

NAME = Path(__file__).with_name("student.txt")
random_of = random.Random(zlib.crc32(NAME.read_bytes()) if NAME.exists() else 0)
STAGES = random_of.choice([3, 4])
MICROBATCHES = STAGES + random_of.randint(1, 3)
WIDTH, BATCHES, LR = random_of.choice([6, 8, 10]), 6, 0.1
ORDERS = [(STAGES, MICROBATCHES), (2, 5), (4, 2), (1, 3)]
"""Stages and microbatches; in one case there are fewer microbatches than stages."""


def tasks(schedule: schedules.Schedule, stage: int) -> list[tuple[str, int]]:
    """Return a worker's tasks as the assignment has them."""
    return [
        (task.op.letter, task.version if task.op is schedules.Op.UPDATE else task.microbatch)
        for task in schedule.workers[stage]
    ]


@pytest.mark.parametrize(("stages", "microbatches"), ORDERS)
def test_part_1_every_stage_has_1f1b(stages: int, microbatches: int) -> None:
    table = schedules.flush(stages, microbatches).take(1)
    for stage in range(stages):
        assert pipeline.one_f_one_b(stage, stages, microbatches) == tasks(table, stage)


def test_part_2_a_batch_in_microbatches_trains_as_a_whole_to_the_bit() -> None:
    model, batches = setting()
    stages = [pipeline.Stage(each, LR) for each in cut(model)]
    for inputs, targets in batches:
        parts, wanted = inputs.tensor_split(MICROBATCHES), targets.tensor_split(MICROBATCHES)
        orders = [pipeline.one_f_one_b(s, STAGES, MICROBATCHES) for s in range(STAGES)]
        pipeline.run(stages, orders, parts, partial(share_of_loss, wanted))
        assert not any(stage.kept for stage in stages), "a backward keeps nothing more"
    require_equal(stages, "flush", MICROBATCHES)


def test_part_3_pipedream_updates_after_every_backward() -> None:
    table = schedules.pipedream(STAGES).take(BATCHES)
    for stage in range(STAGES):
        assert pipeline.pipedream(stage, STAGES, BATCHES) == tasks(table, stage)


def test_part_4_stashed_weights_train_by_pipedreams_equation_to_the_bit() -> None:
    model, batches = setting()
    stages = [pipeline.StashingStage(each, LR) for each in cut(model)]
    orders = [pipeline.pipedream(s, STAGES, BATCHES) for s in range(STAGES)]
    inputs, targets = zip(*batches, strict=True)
    pipeline.run(stages, orders, inputs, lambda k, y: nn.functional.mse_loss(y, targets[k]))
    require_equal(stages, "pipedream", 1)
    assert not any(stage.stash for stage in stages), "a stashed version is dropped after its use"


def share_of_loss(targets: Sequence[Tensor], k: int, output: Tensor) -> Tensor:
    """Return a microbatch's part of its batch's mean."""
    rows = sum(map(len, targets))
    return nn.functional.mse_loss(output, targets[k]) * (len(output) / rows)


def setting() -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    """Return the model, a linear layer and a tanh a stage, and the batches."""
    torch.manual_seed(zlib.crc32(NAME.read_bytes()) if NAME.exists() else 0)
    torch.set_num_threads(1)
    layers = [each for _ in range(STAGES) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    rows = 4 * MICROBATCHES
    batches = [(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)) for _ in range(BATCHES)]
    return nn.Sequential(*layers), batches


def cut(model: nn.Sequential) -> list[nn.Sequential]:
    """Return the model's stages."""
    return [model[2 * s : 2 * s + 2] for s in range(STAGES)]


def require_equal(stages: list, method: str, microbatches: int) -> None:
    """Compare every weight with the oracle's."""
    model, batches = setting()
    judge = oracle.train(
        model,
        batches,
        method=method,
        balance=[2] * STAGES,
        microbatches=microbatches,
        optimizer=partial(torch.optim.SGD, lr=LR),
        loss=nn.MSELoss(),
    )
    for s, stage in enumerate(stages):
        for name, weight in stage.state().items():
            expected = judge.weights[-1][name]  # a slice's layers keep their names
            assert torch.equal(weight, expected), f"stage {s}, {name}: not the equation's weights"
