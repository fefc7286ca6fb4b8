"""Distances between sets of tensors, gradients of an update, and whole trainings."""

import pytest
import torch
from torch import nn

from experiments.study.training import (
    Recipe,
    bit_equal,
    largest_difference,
    pipeline_gradients,
    plain_gradients,
    relative_difference,
    train_pipeline,
    train_plain,
)
from pipekit import models, schedules
from pipekit.datasets import digits
from pipekit.schedules import Schedule


@pytest.fixture
def recipe() -> Recipe:
    torch.manual_seed(0)
    return Recipe(
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
        data=digits(rows=100, test_rows=20),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        batch_rows=20,
        epochs=2,
    )


@pytest.mark.parametrize(
    "schedule", [schedules.gpipe(2, 3), schedules.flush(2, 3)], ids=["gpipe", "flush"]
)
def test_a_flushing_pipeline_equals_the_plain_loop(recipe: Recipe, schedule: Schedule) -> None:
    piped = train_pipeline(recipe, "piped", schedule)
    plain = train_plain(recipe, piped.microbatches, piped.threads)
    assert piped.losses == plain.losses
    assert all(map(bit_equal, piped.weights, plain.weights))
    assert piped.accuracies == pytest.approx(plain.accuracies)


def test_everything_is_kept_an_epoch_and_a_batch(recipe: Recipe) -> None:
    training = train_pipeline(recipe, "GPipe", schedules.gpipe(2, 4), balance=[2, 2])
    assert len(training.losses) == 2 * 4
    assert len(training.accuracies) == len(training.epoch_s) == len(training.weights) == 2
    assert training.last_epoch_loss == pytest.approx(sum(training.losses[4:]) / 4)
    assert training.microbatches == 4
    assert training.run is not None
    assert len(training.run.schedule.batches) == 4
    assert str(training).startswith("GPipe, 2 stages: 2 epochs in ")
    assert str(training).endswith("(measured)")


def test_training_leaves_the_model_and_the_number_of_threads_alone(recipe: Recipe) -> None:
    before = {name: tensor.clone() for name, tensor in recipe.model.state_dict().items()}
    threads = torch.get_num_threads()
    train_plain(recipe, threads=threads + 1)
    train_pipeline(recipe, "GPipe", schedules.gpipe(1, 1))
    assert bit_equal(before, recipe.model.state_dict())
    assert torch.get_num_threads() == threads


LOSS = nn.CrossEntropyLoss()


def test_gradients_are_those_of_one_backward_for_any_stages_and_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with more, sums are split and rounded otherwise
    torch.manual_seed(0)
    model = models.mlp(width=6, depth=3)
    batch = torch.randn(8, 6), torch.arange(8) % 6
    plain = plain_gradients(model, batch, LOSS)
    found = [
        pipeline_gradients(model, [batch], schedules.gpipe(k, 4).take(1), LOSS) for k in (1, 2, 4)
    ]
    assert bit_equal(found[0], found[1])
    assert bit_equal(found[0], found[2])
    twice = schedules.replicate(schedules.gpipe(2, 4), 2)
    for gradient in (*found, pipeline_gradients(model, [batch], twice, LOSS)):
        assert relative_difference(gradient, plain) < 1e-6


def test_two_workers_that_share_an_update_give_the_gradient_of_both_minibatches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4)).double()
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    both = pipeline_gradients(model, batches, schedules.pipedream([2]).take(2), LOSS)
    assert relative_difference(both, plain_gradients(model, (x, y), LOSS)) < 1e-14


def test_distances_are_those_of_all_weights_together() -> None:
    a = {"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([1.0])}
    b = {"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([5.0])}
    assert largest_difference(a, b) == 4
    assert relative_difference(a, b) == 1
    assert not bit_equal(a, b)
    assert bit_equal(a, dict(a))
    assert not bit_equal(a, {"x": a["x"]})
