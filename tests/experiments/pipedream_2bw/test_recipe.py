import pytest
from torch import nn

from experiments.pipedream_2bw.settings import PRE_TRAINING, AdamRecipe, describe
from experiments.study.training import learning_rates
from pipekit.ledger import claims


def test_the_papers_training_is_that_of_the_ledger() -> None:
    assert describe(PRE_TRAINING) == claims.load()["2bw-setup-hparams"].value


def test_one_line_cannot_describe_trainings_of_two_kinds() -> None:
    with pytest.raises(ValueError, match="differ in more than batch and steps"):
        describe({"bert": AdamRecipe(1, 1), "gpt": AdamRecipe(1, 1, lr=1.0)})


def test_the_learning_rate_warms_up_and_then_falls_to_nothing_on_straight_lines() -> None:
    training = AdamRecipe(batch_rows=1, steps=10, lr=2.0, warm_up=0.4)
    optimizer = training.optimizer([nn.Parameter(nn.Linear(2, 2).weight)])
    scheduler = training.scheduler(optimizer)
    rates = learning_rates(optimizer, scheduler, 10)
    assert rates[:4] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rates[4:] == pytest.approx([2 * left / 6 for left in (6, 5, 4, 3, 2, 1)])


def test_only_matrices_decay() -> None:
    layer, norm = nn.Linear(3, 4), nn.LayerNorm(4)
    parameters = [*layer.parameters(), *norm.parameters()]
    groups = AdamRecipe(1, 1).optimizer(parameters).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.01), (3, 0.0)]
    assert groups[0]["params"][0] is layer.weight
    (only,) = AdamRecipe(1, 1).optimizer(list(norm.parameters())).param_groups
    assert only["weight_decay"] == 0
