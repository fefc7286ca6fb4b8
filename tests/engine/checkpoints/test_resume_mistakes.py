"""What goes wrong with a checkpoint, and what the error says to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit.engine.checkpoints import files as checkpoints
from tests.engine.checkpoints.test_resume import Interrupting, Interruption, end, saved_after
from tests.engine.examples import (
    data,
    mixed,
    pipeline,
)


def test_from_an_empty_folder_training_begins_at_its_beginning(tmp_path: Path) -> None:
    pipe = pipeline(mixed(), "flush", [3, 5])
    assert pipe.resume(tmp_path / "none") == 0
    assert pipe.train(data(2)).losses == pipeline(mixed(), "flush", [3, 5]).train(data(2)).losses


def test_a_damaged_checkpoint_costs_some_batches_and_no_bit(tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        pipeline(mixed(), "2bw", [3, 5], loss=Interrupting(25)).train(
            data(8), checkpoints=pk.Checkpoints(tmp_path, every=2)
        )
    newest = saved_after(tmp_path)
    path = checkpoints.parts_of(end(tmp_path))[1].path
    path.write_bytes(path.read_bytes()[:-1])
    again = pipeline(mixed(), "2bw", [3, 5])
    with pytest.warns(UserWarning, match=path.name):
        again.resume(tmp_path)
    with pytest.warns(UserWarning, match=path.name):
        assert saved_after(tmp_path) == newest - 2
    losses = pipeline(mixed(), "2bw", [3, 5]).train(data(8)).losses
    assert again.train(data(8), checkpoints=pk.Checkpoints(tmp_path, every=2)).losses == losses


def wrong_folder(pipe: pk.Pipeline, folder: Path) -> None:
    pipe.train(data(2), checkpoints=folder)


def one_checkpoint(pipe: pk.Pipeline, folder: Path) -> None:
    pipe.resume(next(folder.glob("batch-*")))


def another_model(pipe: pk.Pipeline, folder: Path) -> None:
    layers = list(mixed())
    layers[4] = nn.Linear(8, 8, bias=False)
    pipeline(nn.Sequential(*layers), "flush", [3, 5]).resume(folder)


def another_optimizer(pipe: pk.Pipeline, folder: Path) -> None:
    pipe = pipeline(mixed(), "flush", [3, 5], optimizer=torch.optim.Adagrad)
    pipe.resume(folder)
    pipe.train(data(4))  # nothing is left of it
    pipe.train(data(4))


def too_few_batches(pipe: pk.Pipeline, folder: Path) -> None:
    pipe.resume(folder)
    pipe.train(data(1))


def other_weights(pipe: pk.Pipeline, folder: Path) -> None:
    pipe.resume(folder)
    pipe.load_state_dict(mixed().state_dict())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (other_weights, r"goes on with the weights of .*: load others after it"),
        (wrong_folder, r"holds checkpoints of another training: call resume"),
        (one_checkpoint, "is one checkpoint: name the folder of all"),
        (another_model, r"another model: .*'4.bias'.*build the model of the saved run"),
        (another_optimizer, "resume with the optimizer and the lr_scheduler of the saved run"),
        (too_few_batches, "after 4 batches of a run, and this one has 1: pass all batches"),
    ],
)
def test_mistakes_name_the_remedy(
    mistake: Callable[[pk.Pipeline, Path], None], message: str, tmp_path: Path
) -> None:
    pipeline(mixed(), "flush", [3, 5]).train(data(4), checkpoints=tmp_path)
    with pytest.raises((ValueError, RuntimeError), match=message):
        mistake(pipeline(mixed(), "flush", [3, 5]), tmp_path)
