import pytest
import torch
from torch import nn

from experiments.study.differences import bit_equal
from experiments.study.training import Recipe, train_pipeline, train_plain
from pipekit import schedules
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
def test_a_flushing_pipeline_equals_the_plain_loop_to_the_bit(
    recipe: Recipe, schedule: Schedule
) -> None:
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
