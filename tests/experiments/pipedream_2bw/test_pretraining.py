"""Recipes, small trainings, how far updates move weights, and how closely 2BW follows vanilla."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.pipedream_2bw.pretraining import (
    METHODS,
    PIPEDREAM,
    TWO_BW,
    VANILLA,
    Movement,
    PreTraining,
    train,
)
from experiments.study.training import take
from pipekit import Updates, oracle
from pipekit.engine import Pipeline, Watch
from pipekit.models import token_loss


def test_the_learning_rate_warms_up_and_then_falls_to_nothing_on_straight_lines() -> None:
    training = replace(BERT, lr=2.0, warm_up=0.4)
    rates = [training.lr * training.share_of_lr(step) for step in range(10)]
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[4:] == pytest.approx([2 * left / 6 for left in (6, 5, 4, 3, 2, 1)])


def test_only_matrices_decay() -> None:
    layer, norm = nn.Linear(3, 4), nn.LayerNorm(4)
    parameters = [*layer.parameters(), *norm.parameters()]
    groups = BERT.optimizer(parameters).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.01), (3, 0.0)]
    assert groups[0]["params"][0] is layer.weight
    (only,) = BERT.optimizer(list(norm.parameters())).param_groups
    assert only["weight_decay"] == 0


BERT = PreTraining(
    batch_rows=8,
    steps=10,
    lr=0.01,
    sequence=16,
    warm_up=0.2,
    network="bert",
    layers=1,
    hidden=16,
    heads=2,
    dropout=0.1,
    method=VANILLA,
    stages=2,
    seed=0,
    rows=80,
    test_rows=16,
)
GPT = replace(BERT, network="gpt")


@pytest.mark.parametrize(
    ("case", "method", "equation", "stages", "parts"),
    [
        (GPT, VANILLA, "flush", 3, 3),
        (BERT, TWO_BW, "2bw", 3, 3),
        (GPT, PIPEDREAM, "pipedream", 3, 1),
    ],
)
def test_a_language_model_trains_as_the_methods_equation_says(
    case: PreTraining, method: str, equation: str, stages: int, parts: int
) -> None:
    model = case.build()
    batches = take(case.text(), case.batch_rows, case.steps, seed=0)
    movement = Movement(model)
    pipeline = Pipeline(
        model,
        METHODS[method](stages),
        optimizer=case.optimizer,
        loss=token_loss,
        updates=Updates(lr_scheduler=case.scheduler),
    )
    run = pipeline.train(batches, watch=Watch(observers=[movement]))
    judge = oracle.train(
        model,
        batches,
        method=equation,
        balance=pipeline.balance or [],
        microbatches=parts,
        optimizer=case.optimizer,
        loss=token_loss,
        lr_scheduler=case.scheduler,
    )
    assert run.losses == judge.losses
    weights = pipeline.state_dict()
    assert all(torch.equal(weights[name], last) for name, last in judge.weights[-1].items())
    assert movement.relative == pytest.approx(
        [
            math.dist(_flat(new), _flat(old)) / math.hypot(*_flat(new))
            for old, new in zip(judge.weights, judge.weights[1:], strict=False)
        ],
        rel=1e-4,
    )


def test_a_course_has_every_batch_once_and_a_score_before_and_after_each_tenth() -> None:
    points = train(replace(GPT, steps=25, rows=200)).points
    assert len(points["loss"]) - points["loss"].count(None) == 25
    scores = {step: each for step, each in enumerate(points["validation"]) if each is not None}
    assert list(scores) == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    assert scores[0] == pytest.approx(math.log(256), rel=0.05)
    assert scores[25] < scores[0]


def test_validations_leave_no_trace_in_a_training() -> None:
    found = train(BERT).points
    assert None not in found["validation"]
    assert len(found["moved"]) - found["moved"].count(None) == 10
    model = BERT.build()
    judge = oracle.train(
        model,
        take(BERT.text(), BERT.batch_rows, BERT.steps, 0),
        method="flush",
        balance=[len(model)],
        microbatches=BERT.stages,
        optimizer=BERT.optimizer,
        lr_scheduler=BERT.scheduler,
        clip_norm=1.0,
        loss=token_loss,
    )
    assert found["loss"][1:] == judge.losses


def _flat(weights: dict[str, torch.Tensor]) -> list[float]:
    return torch.cat([weight.flatten() for weight in weights.values()]).tolist()
