import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.pipedream_2bw.pretraining import (
    METHODS,
    PIPEDREAM,
    POINTS,
    TWO_BW,
    VANILLA,
    FineTuning,
    Movement,
    PreTraining,
    course,
    fine_tune,
    take,
    trainings,
)
from pipekit import Updates, oracle
from pipekit.engine import Pipeline
from pipekit.models import token_loss

BERT = PreTraining(
    *(8, 10, 0.01, 16, 0.2),  # rows, steps, rate, sequence, warm-up
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


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("case", [GPT, BERT], ids=["gpt", "bert"])
def test_more_stages_than_layers_are_refused_before_anything_is_trained(case: PreTraining) -> None:
    layers = len(case.build())
    replace(case, stages=layers)
    with pytest.raises(ValueError, match=f"use at most {layers} stages"):
        replace(case, stages=layers + 1)


@pytest.mark.parametrize("case", [GPT, BERT], ids=["gpt", "bert"])
@pytest.mark.parametrize(
    ("method", "equation", "stages", "parts"),
    [(VANILLA, "flush", 3, 3), (TWO_BW, "2bw", 3, 3), (PIPEDREAM, "pipedream", 3, 1)],
)
def test_a_language_model_trains_as_the_methods_equation_says(
    case: PreTraining, method: str, equation: str, stages: int, parts: int
) -> None:
    model = case.build()
    batches = take(case.text(), case.batch_rows, case.steps, seed=0)
    movement = Movement()
    pipeline = Pipeline(
        model,
        METHODS[method](stages),
        optimizer=movement.watching(case.optimizer),
        loss=token_loss,
        updates=Updates(lr_scheduler=case.scheduler),
    )
    run = pipeline.train(batches)
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
    case = replace(GPT, steps=25, rows=200)
    model, schedule = case.build(), METHODS[VANILLA](1)
    pipeline = Pipeline(model, schedule, optimizer=case.optimizer, loss=token_loss)
    pieces = list(course(pipeline, case.text(), case, seed=0))
    assert [len(losses) for losses, _ in pieces] == [0, *[2, 3] * 5]
    assert pieces[0][1] == pytest.approx(math.log(256), rel=0.05)
    assert pieces[-1][1] < pieces[0][1]


def test_batches_go_on_into_further_epochs_in_another_order() -> None:
    batches = take(replace(GPT, rows=16).text(), batch_rows=8, steps=4, seed=0)
    first, second = (torch.cat([x for x, _ in half]) for half in (batches[:2], batches[2:]))
    assert not torch.equal(first, second)
    assert torch.equal(first.unique(dim=0), second.unique(dim=0))


def test_fine_tuning_starts_from_the_weights_that_pre_training_kept(tmp_path: Path) -> None:
    found = trainings(tmp_path).run([BERT])
    assert found["step"].tolist() == found.dropna(subset="validation")["step"].tolist()
    assert found["moved"].notna().sum() == 10
    model = BERT.build()
    judge = oracle.train(
        model,
        take(BERT.text(), BERT.batch_rows, BERT.steps, 0),
        method="flush",
        balance=[len(model)],
        microbatches=BERT.stages,
        optimizer=BERT.optimizer,
        lr_scheduler=BERT.scheduler,
        clip_norm=BERT.clip_norm,
        loss=token_loss,
    )
    assert found["loss"].tolist()[1:] == judge.losses  # validations leave no trace

    tuned = FineTuning("BERT", POINTS, BERT, 10, classes=2, rows=96, test_rows=16)
    kept = torch.load(BERT.weights(tmp_path, POINTS), weights_only=True)
    trunk = {name: weight for name, weight in kept.items() if int(name.split(".")[0]) < 2}
    start, untrained = (case.model(tmp_path) for case in (tuned, replace(tuned, point=0)))
    loaded = start.state_dict()
    assert trunk
    assert all(torch.equal(loaded[name], weight) for name, weight in trunk.items())
    embedding, head = "0.embedding.token.weight", f"{len(start) - 1}.weight"
    assert not torch.equal(untrained.state_dict()[embedding], trunk[embedding])
    assert torch.equal(untrained.state_dict()[head], loaded[head])

    points = fine_tune(tuned, tmp_path).points
    assert points["step"] == list(range(11))
    assert all(0 <= share <= 100 for share in points["accuracy"] if share is not None)


def _flat(weights: dict[str, torch.Tensor]) -> list[float]:
    return torch.cat([weight.flatten() for weight in weights.values()]).tolist()
