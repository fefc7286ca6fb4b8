"""PipeDream's equations written out, beside the engine, and what leaves a replicated stage when."""

from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.pipedream import staleness
from experiments.pipedream.staleness import SmallTraining
from experiments.study import bit_equal
from pipekit import Pipeline, Plan, Profile, schedules
from pipekit.clusters import flat
from pipekit.schedules import parse
from tests.emulation.own_time import own_time

LATE = [3, 2, 1, 0]


@pytest.fixture(scope="module")
def training() -> SmallTraining:
    return SmallTraining.random(torch.float64, 6, width=5, lr=0.5, seed=0)


def test_the_engine_replays_the_equation_and_not_the_text(training: SmallTraining) -> None:
    engine = training.engine(schedules.pipedream(4))
    assert staleness.farthest(engine, training.replayed(LATE)) == 0
    text = training.replayed([delay + 1 for delay in LATE])
    assert staleness.farthest(engine, text) > 1e-3


def test_only_stashing_follows_a_gradient(training: SmallTraining) -> None:
    kept = training.engine(schedules.pipedream(4))
    naive = training.engine(schedules.pipedream(4, stashing=False))
    assert len(training.gradient_errors(kept, LATE)) == 3  # minibatches 3 to 5
    assert max(training.gradient_errors(kept, LATE)) < 1e-12
    assert min(training.gradient_errors(naive, LATE)) > 1e-3
    assert min(training.gradient_errors(naive, [0] * 4)) > 1e-3


def test_an_update_is_a_step_from_the_latest_weights(training: SmallTraining) -> None:
    history = training.replayed(LATE)
    gradient = training.gradient(history, LATE, 4)
    assert bit_equal(training.stepped(history[4], gradient), history[5])
    assert not bit_equal(training.stepped(history[3], gradient), history[5])


def test_a_version_is_overwritten_once_its_last_reader_is_done() -> None:
    # Both minibatches read version 0; U1 needs a second buffer, which U2 would overwrite.
    tasks = parse("worker 0 | F0 F1 B0^ B1^ F2 B2^ F3 B3^").workers[0]
    lives = {version: (last, gone) for version, last, gone in staleness.overwritten(tasks)}
    assert all(last < gone for last, gone in lives.values())
    assert lives[3][1] == len(tasks) - 1


def test_shards_have_every_parameter_once() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    batches = [(torch.randn(2, 5), torch.randn(2, 2))] * 6
    assert staleness.misplaced_parameters(model, batches, replicas=3) == 0


def test_gradients_leave_when_the_last_layers_backward_ends() -> None:
    """Of the emulation, in a time of its own: three layers of 20 ms, the last of them first.

    That they leave before the whole backward ends is a real training's test, too.
    """
    profile = Profile.uniform(3, 0.005, 0.02, parameter_bytes=30e6)
    plan = Plan.by_hand([3], replicas=[2])
    with own_time():
        sent, ended = staleness.first_send(profile, plan, flat(2, 1e13), 4)
    assert [sent, ended] == pytest.approx([0.02, 0.06])


def test_checkpoints_send_nothing_and_every_stage_writes_a_file_an_epoch(tmp_path: Path) -> None:
    training = SmallTraining.random(torch.float32, 4, width=5, lr=0.5, seed=0)

    def build() -> Pipeline:
        return Pipeline(training.model, schedules.pipedream(4), **training.how)

    two, three = ([training.batches] * epochs for epochs in (2, 3))
    assert staleness.coordination(build, two, tmp_path / "two") == (0, 1)
    assert staleness.coordination(build, three, tmp_path / "three")[1] == -1  # two stay
