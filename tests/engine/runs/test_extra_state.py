"""What modules keep beside tensors, by torch's get_extra_state and set_extra_state."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import data, pipeline
from tests.engine.parametrized import TRANSPORTS, first_over_processes

pytestmark = pytest.mark.filterwarnings("ignore:the forward changes .*kept")
TENSOR = torch.tensor([1.0, 2.0])


class Keeps(nn.Linear):
    """Has a state of any kind."""

    def __init__(self, state: Any, width: int = 6) -> None:
        super().__init__(6, width)
        self.kept = state

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


class Counts(Keeps):
    """Counts its forwards."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        return super().forward(x)


class OnlyGives(nn.Linear):
    def get_extra_state(self) -> Any:
        return 3


def layers(first: Any, second: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Keeps(first), nn.Tanh(), Keeps(second, 3))


def equal(one: Any, other: Any) -> bool:
    return str(one) == str(other)


@first_over_processes("state", [{"scale": TENSOR, "names": ["a"]}, TENSOR, "text", None])
def test_it_is_read_and_loaded_as_by_the_module(state: Any, transport: str) -> None:
    pipe = pipeline(layers(state, {"old": [1]}), "flush", [2, 1], transport=transport)
    assert equal(pipe.state_dict()["0._extra_state"], state)
    pipe.train(data(1))
    found = pipe.state_dict()
    assert equal(found["0._extra_state"], state)
    assert equal(pipe.load_into(layers(0))[2].kept, {"old": [1]})
    new = layers(torch.zeros(3), state)
    pipe.load_state_dict(new.state_dict())
    found = pipe.state_dict()
    assert equal(found["0._extra_state"], torch.zeros(3))
    assert equal(found["2._extra_state"], state)
    assert torch.equal(found["2.weight"], new.state_dict()["2.weight"])


@first_over_processes("evaluated", [True, False])
def test_it_counts_microbatches_as_a_plain_loop_does(evaluated: bool, transport: str) -> None:
    """And not the one that is tried before training."""
    model = nn.Sequential(Counts(TENSOR), Counts(0, 3))
    pipe = pipeline(model, "flush", [1, 1], m=2, transport=transport)
    if evaluated:
        pipe.evaluate(data(1))
    before: Any = pipe.state_dict()
    pipe.train(data(3))
    after: Any = pipe.state_dict()
    assert after["1._extra_state"] - before["1._extra_state"] == 3 * 2
    assert torch.equal(after["0._extra_state"] - before["0._extra_state"], torch.full((2,), 6.0))


@TRANSPORTS
def test_all_workers_of_a_stage_load_it(transport: str) -> None:
    model = nn.Sequential(Counts(0), nn.Linear(6, 3))
    pipe = pipeline(model, schedules.pipedream([2, 1]), [1, 1], transport=transport)
    pipe.train(data(2))
    pipe.load_state_dict({"0._extra_state": 100}, strict=False)
    replicas = [stage.config.module[0] for stage in pipe._model._stages[0].values()]
    assert [each.kept for each in replicas if isinstance(each, Counts)] == [100, 100]


def test_a_module_that_cannot_take_it_is_told_before_anything_changes() -> None:
    pipe = pipeline(nn.Sequential(nn.Linear(6, 6), OnlyGives(6, 3)), "flush", [1, 1])
    before = pipe.state_dict()
    changed = {name: torch.as_tensor(entry) + 1 for name, entry in before.items()}
    with pytest.raises(ValueError, match=r"OnlyGives gives .1._extra_state. .* set_extra_state"):
        pipe.load_state_dict(changed)
    assert torch.equal(pipe.state_dict()["0.weight"], before["0.weight"])


@TRANSPORTS
def test_a_checkpoint_holds_it_as_it_was_at_its_batch(transport: str, tmp_path: Path) -> None:
    def pipe() -> pk.Pipeline:
        torch.manual_seed(0)
        model = nn.Sequential(Counts(TENSOR), nn.Linear(6, 3))
        return pipeline(model, "flush", [1, 1], transport=transport)

    whole = pipe()
    whole.train(data(4), checkpoints=pk.Checkpoints(tmp_path / "a", every=2))
    newest = max((tmp_path / "a").glob("batch-*"))
    for part in newest.iterdir():
        part.unlink()
    half = pipe()
    half.train(data(2))
    again = pipe()
    again.resume(tmp_path / "a")
    assert equal(again.state_dict()["0._extra_state"], half.state_dict()["0._extra_state"])
    again.train(data(4))
    assert equal(again.state_dict(), whole.state_dict())


class Opaque:
    """More than tensors and plain values."""


def test_a_checkpoint_that_cannot_hold_it_is_refused_before_training(tmp_path: Path) -> None:
    model = layers({"a": Opaque()})
    pipe = pipeline(copy.deepcopy(model), "flush", [2, 1])
    with pytest.raises(TypeError, match=r"cannot hold the extra state '0\._extra_state', a dict"):
        pipe.train(data(2), checkpoints=tmp_path)
    assert torch.equal(pipe.state_dict()["0.weight"], model.state_dict()["0.weight"])
    other = pipeline(layers("kept"), "flush", [2, 1])
    other.train(data(2), checkpoints=tmp_path)
    without = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"of another model: .*'0\._extra_state'"):
        pipeline(without, "flush", [2, 1]).resume(tmp_path)
