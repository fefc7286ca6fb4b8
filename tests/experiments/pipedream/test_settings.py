"""PipeDream's settings: what PyTorch is told."""

import pytest
import torch
from torch import nn

from experiments.pipedream.settings import DATA, TRAININGS
from experiments.study.training import learning_rates
from pipekit.ledger.claims import load


def test_inceptions_learning_rate_falls_by_six_percent_every_two_epochs() -> None:
    training = TRAININGS["inception-v3"]
    optimizer = training.optimizer([nn.Parameter(torch.zeros(1))])
    scheduler = training.scheduler(optimizer)
    expected = [0.045, 0.045, 0.0423, 0.0423, 0.039762, 0.039762]
    assert learning_rates(optimizer, scheduler, 6) == pytest.approx(expected, rel=1e-9)
    assert isinstance(optimizer, torch.optim.RMSprop)


@pytest.mark.parametrize("model", ["vgg16", "s2vt"])
def test_the_others_have_momentum_and_a_constant_rate(model: str) -> None:
    training = TRAININGS[model]
    optimizer = training.optimizer([nn.Parameter(torch.zeros(1))])
    scheduler = training.scheduler(optimizer)
    assert isinstance(optimizer, torch.optim.SGD)
    for _ in range(5):
        assert optimizer.param_groups[0]["lr"] == 0.01
        assert optimizer.param_groups[0]["momentum"] == 0.9
        optimizer.step()
        scheduler.step()


def test_minibatches_are_the_ledgers() -> None:
    rows = [TRAININGS[model].minibatch for model in ("vgg16", "inception-v3", "s2vt")]
    assert rows == load()["pipedream-batch-sizes"].target


def test_every_training_has_its_data() -> None:
    assert {training.data for training in TRAININGS.values()} == set(DATA)
