"""Distances, gradients and whole trainings; questions to traces, and seconds that a worker computes."""

from itertools import count

import pytest
import torch
from torch import nn

from experiments.study import with_links
from experiments.study.traces import EQUAL_SLOTS, busy_s, memory_of, own_activities, own_seconds
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
from experiments.torchgpipe.cells import as_drawn
from pipekit import models, schedules, simulate
from pipekit.clusters import flat
from pipekit.datasets import digits
from pipekit.engine import Execution, Pipeline
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.traces import Trace


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


def test_a_flushing_pipeline_equals_the_plain_loop(recipe: Recipe) -> None:
    piped = train_pipeline(recipe, "piped", schedules.flush(2, 3))
    plain = train_plain(recipe, piped.microbatches, piped.threads)
    assert piped.losses == plain.losses
    assert all(map(bit_equal, piped.weights, plain.weights))
    assert piped.accuracies == pytest.approx(plain.accuracies)
    assert piped.last_epoch_loss == pytest.approx(sum(piped.losses[4:]) / 4)


def test_training_leaves_the_model_and_the_number_of_threads_alone(recipe: Recipe) -> None:
    before = {name: tensor.clone() for name, tensor in recipe.model.state_dict().items()}
    threads = torch.get_num_threads()
    train_plain(recipe, threads=threads + 1)
    train_pipeline(recipe, "GPipe", schedules.gpipe(1, 1))
    assert bit_equal(before, recipe.model.state_dict())
    assert torch.get_num_threads() == threads


LOSS = nn.CrossEntropyLoss()


def test_gradients_are_those_of_one_backward_for_any_stages_and_replicas() -> None:
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


def test_backwards_as_drawn_are_the_forwards_reversed_and_can_be_executed() -> None:
    picture = """
    worker 0 | F0 F1 .  .  B1 B0^ F2 F3 .  .  B3 B2^
    worker 1 | .  F0 F1 B1 B0^ .  .  F2 F3 B3 B2^
    """
    table = as_drawn(2, 2).repeat().take(2)
    assert table.workers == schedules.parse(picture).workers
    schedules.check(table)


def test_time_within_a_window_is_counted_and_memory_must_have_been_followed() -> None:
    trace = Trace.from_schedule(as_drawn(2, 2), EQUAL_SLOTS)
    first = trace.frame[trace.frame["worker"] == 0]
    assert busy_s(first, 1.5, 4.5) == 1.0
    with pytest.raises(ValueError, match="memory=True"):
        memory_of(trace)
    assert memory_of(simulate(as_drawn(2, 2), Profile.uniform(2))).peak_bytes == (0, 0)


def one_stage(microbatches: int, recompute: Recompute) -> Pipeline:
    return Pipeline(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)),
        gpipe(1, microbatches),
        balance=[2],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
        execution=Execution(recompute=recompute),
    )


def test_every_pass_and_the_update_count_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks whenever it is looked at: each activity takes one tick."""
    ticks = count()
    monkeypatch.setattr("time.thread_time", lambda: float(next(ticks)))
    batch = torch.ones(4, 2), torch.ones(4, 1)
    pairs = {mode: (one_stage(4, mode), batch) for mode in ("never", "always")}
    seconds = own_seconds(pairs, rounds=2)
    assert seconds["never"].tolist() == [4 + 4 + 1] * 2
    assert seconds["always"].tolist() == [4 + 4 + 4 + 1] * 2
    by_activity = own_activities(pairs, rounds=1).iloc[0]
    each = {"FORWARD": 4, "BACKWARD": 4, "UPDATE": 1}
    assert by_activity["never"].to_dict() == each
    assert by_activity["always"].to_dict() == each | {"RECOMPUTE": 4}


def test_messages_have_rows_behind_each_workers_own() -> None:
    costs = Profile.uniform(2, 1, 2, output_bytes=1)
    trace = simulate(gpipe(2, 2).take(1), costs, cluster=flat(2, 1))
    assert trace.transfers is not None
    drawn = with_links(trace, trace.transfers, 1, 2)
    assert drawn.frame.groupby("worker").size().tolist() == [5, 2, 2, 5, 2, 2]
    assert drawn.frame.index.is_unique
