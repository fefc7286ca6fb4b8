import pytest
import torch

from experiments.quickstart import comparison, four_methods
from experiments.study.training import PipelineTraining
from pipekit.datasets import mnist
from pipekit.schedules import ScheduleError


@pytest.fixture(scope="module")
def trainings() -> list[PipelineTraining]:
    data = mnist(rows=80, test_rows=20)
    recipe = four_methods.digits_recipe(data, 20, epochs=1, lr=0.005, momentum=0.9, seed=3)
    return list(four_methods.train_all([recipe], [2], 4, "threads"))


def test_every_method_trains_at_every_depth(trainings: list[PipelineTraining]) -> None:
    assert [training.name for training in trainings] == list(four_methods.METHODS)
    assert [training.microbatches for training in trainings] == [4, 4, 1, 4]


def test_a_depth_that_one_method_cannot_have_is_refused_before_the_first_training() -> None:
    untouched = four_methods.train_all(iter(()), [2, 8], 4, "threads")
    with pytest.raises(ScheduleError, match="2BW needs at least as many microbatches"):
        next(untouched)


def test_a_seed_gives_the_same_weights() -> None:
    data = mnist(rows=80, test_rows=20)
    one, same, other = (
        four_methods.digits_recipe(data, 20, 1, 0.1, 0.9, seed).model.get_parameter("0.weight")
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_pictures_name_what_they_show(trainings: list[PipelineTraining]) -> None:
    stem, figure, events = four_methods.plan_and_run(trainings[1], 4)
    assert stem == "timeline_pipedream-flush_2_stages"
    assert len(figure.layout.annotations) == 2
    assert set(events["label"]) == {"exact", "measured"}
    loop = next(iter(comparison.references(trainings[:1]).values()))
    title = four_methods.loss_figure(trainings, loop).layout.title.text
    farthest = max(trainings, key=lambda t: abs(t.last_epoch_loss - loop.last_epoch_loss))
    assert title.startswith(f"{farthest.name} trains farthest from the plain loop")
    ends = [100 * training.accuracies[-1] for training in trainings]
    title = four_methods.accuracy_figure(trainings).layout.title.text
    assert f"reach {min(ends):.1f} to {max(ends):.1f} %" in title
