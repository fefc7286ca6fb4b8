import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.pipedream_2bw.convergence import finetuning, vanilla
from experiments.pipedream_2bw.convergence.movement import Movement
from experiments.pipedream_2bw.convergence.pretraining import (
    METHODS,
    PIPEDREAM,
    POINTS,
    TWO_BW,
    VANILLA,
    Network,
    PreTraining,
    Study,
    course,
    take,
    train,
)
from experiments.pipedream_2bw.convergence.recipe import AdamRecipe
from pipekit import Updates, oracle
from pipekit.engine import Pipeline
from pipekit.models import token_loss

TRAINING = AdamRecipe(batch_rows=8, steps=10, lr=0.01, sequence=16, warm_up=0.2)
GPT, BERT = (Network(kind, layers=1, hidden=16, heads=2) for kind in ("gpt", "bert"))
CASE = PreTraining(BERT, VANILLA, seed=0, training=TRAINING, stages=2, rows=80, test_rows=16)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_more_stages_than_layers_are_refused_before_anything_is_trained() -> None:
    networks, layers = {"gpt": GPT, "bert": BERT}, len(GPT.build(16, seed=0))  # BERT has more
    Study(networks, TRAINING, {VANILLA: 2, PIPEDREAM: layers}, rows=80, test_rows=16)
    with pytest.raises(ValueError, match=f"use at most {layers} stages"):
        Study(networks, TRAINING, {VANILLA: 2, PIPEDREAM: layers + 1}, rows=80, test_rows=16)


@pytest.mark.parametrize("network", [GPT, BERT], ids=str)
@pytest.mark.parametrize(
    ("method", "equation", "stages", "parts"),
    [(VANILLA, "flush", 3, 3), (TWO_BW, "2bw", 3, 3), (PIPEDREAM, "pipedream", 3, 1)],
)
def test_a_language_model_trains_as_the_methods_equation_says(
    network: Network, method: str, equation: str, stages: int, parts: int
) -> None:
    model, data = network.build(16, seed=0), network.data(16, 80, 16)
    batches = take(data, TRAINING.batch_rows, TRAINING.steps, seed=0)
    movement = Movement()
    pipeline = Pipeline(
        model,
        METHODS[method](stages),
        optimizer=movement.watching(TRAINING.optimizer),
        loss=token_loss,
        updates=Updates(lr_scheduler=TRAINING.scheduler),
    )
    run = pipeline.train(batches)
    judge = oracle.train(
        model,
        batches,
        method=equation,
        balance=pipeline.balance or [],
        microbatches=parts,
        optimizer=TRAINING.optimizer,
        loss=token_loss,
        lr_scheduler=TRAINING.scheduler,
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
    batches = take(GPT.data(16, 96, 16), batch_rows=8, steps=25, seed=0)
    pipeline = Pipeline(
        GPT.build(16, seed=0),
        METHODS[VANILLA](1),
        optimizer=TRAINING.optimizer,
        loss=token_loss,
    )
    pieces = list(course(pipeline, batches, batches[:1]))
    assert [len(losses) for losses, _ in pieces] == [0, *[2, 3] * 5]
    assert pieces[0][1] == pytest.approx(math.log(256), rel=0.05)
    assert pieces[-1][1] < pieces[0][1]


def test_batches_go_on_into_further_epochs_in_another_order() -> None:
    batches = take(GPT.data(16, 16, 8), batch_rows=8, steps=4, seed=0)
    first, second = (torch.cat([x for x, _ in half]) for half in (batches[:2], batches[2:]))
    assert not torch.equal(first, second)
    assert torch.equal(first.unique(dim=0), second.unique(dim=0))


def test_a_name_tells_cases_apart() -> None:
    others = [
        replace(CASE, seed=1),
        replace(CASE, rows=81),
        replace(CASE, network=replace(BERT, dropout=0.0)),
        replace(CASE, training=replace(TRAINING, lr=0.02)),
    ]
    assert len({case.name for case in [CASE, *others]}) == 5
    assert replace(CASE).name == CASE.name


def test_fine_tuning_starts_from_the_weights_that_pre_training_kept(tmp_path: Path) -> None:
    record = train(CASE, tmp_path)
    assert len(record["losses"]) == len(record["moved"]) == 10
    assert [step for step, _ in record["validations"]] == list(range(11))
    judge = oracle.train(
        BERT.build(16, CASE.seed),
        take(BERT.data(16, CASE.rows, CASE.test_rows), TRAINING.batch_rows, TRAINING.steps, 0),
        method="flush",
        balance=[len(BERT.build(16, 0))],
        microbatches=CASE.stages,
        optimizer=TRAINING.optimizer,
        lr_scheduler=TRAINING.scheduler,
        clip_norm=TRAINING.clip_norm,
        loss=token_loss,
    )
    assert record["losses"] == judge.losses  # validations leave no trace

    tuned = finetuning.FineTuning(CASE, POINTS, TRAINING, classes=2, rows=96, test_rows=16)
    kept = torch.load(CASE.weights(tmp_path, POINTS), weights_only=True)
    trunk = {name: weight for name, weight in kept.items() if int(name.split(".")[0]) < 2}
    start, untrained = (
        finetuning.start(case, tmp_path) for case in (tuned, replace(tuned, start=0))
    )
    loaded = start.state_dict()
    assert trunk
    assert all(torch.equal(loaded[name], weight) for name, weight in trunk.items())
    embedding, head = "0.embedding.token.weight", f"{len(start) - 1}.weight"
    assert not torch.equal(untrained.state_dict()[embedding], trunk[embedding])
    assert torch.equal(untrained.state_dict()[head], loaded[head])

    accuracies = finetuning.train(tuned, tmp_path)["accuracies"]
    assert [step for step, _ in accuracies] == list(range(11))
    assert all(0 <= share <= 1 for _, share in accuracies)


def test_gpipe_flush_and_data_parallelism_are_the_ordinary_loop_to_the_bit() -> None:
    found = vanilla.weights(GPT, replace(TRAINING, steps=3), workers=4)
    ordinary = found[vanilla.ORDINARY]
    assert len(found) == 4
    for state in found.values():
        assert all(torch.equal(state[name], weight) for name, weight in ordinary.items())


def _flat(weights: dict[str, torch.Tensor]) -> list[float]:
    return torch.cat([weight.flatten() for weight in weights.values()]).tolist()


def test_at_the_lowest_rate_two_methods_train_as_many_seeds() -> None:
    depths = dict.fromkeys(METHODS, 2)
    study = Study({"gpt": GPT, "bert": BERT}, TRAINING, depths, rows=80, test_rows=16)
    cases = study.trainings(3, [0.001, 0.1])
    assert len(cases) == 2 * 3 * 3 + 2 * 2 * 3 + 2
    own, low, high = (
        [case for case in cases if case.training.lr == lr] for lr in (0.01, 0.001, 0.1)
    )
    assert {case.method for case in own} == set(METHODS)
    assert {(case.network.kind, case.method, case.seed) for case in low} == {
        (kind, method, seed)
        for kind in ("gpt", "bert")
        for method in (VANILLA, TWO_BW)
        for seed in range(3)
    }
    assert [(case.network.kind, case.seed) for case in high] == [("gpt", 0)] * 2
