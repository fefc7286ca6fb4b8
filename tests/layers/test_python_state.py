"""What modules keep in Python is found, and put back; and copies of them."""

import threading
from collections import Counter, deque
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipekit.layers.module_state import copied, state_untouched, twin
from pipekit.layers.python_state import PythonState, is_pure
from tests.engine.examples import mlp, pipeline

CALLS = 0


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


def replaced() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.forward = lambda input: input  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2),  # counts
        nn.ReLU(inplace=True),
        nn.Embedding(4, 2, max_norm=1.0),  # edits its weights
        nn.TransformerEncoderLayer(2, 1, activation=lambda x: x),  # holds a user's function
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        type("Linear", (nn.Linear,), {})(2, 2),
        hooked(),
        replaced(),
    ],
)
def test_what_may_leave_something_behind_is_not_pure(layer: nn.Module) -> None:
    assert is_pure(nn.Sequential(nn.Linear(2, 2)))
    assert not is_pure(nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer)))


class Remembers(nn.Module):
    """Has something of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.count, self.shape, self.table = 0, (0, 0), torch.zeros(2)
        self.log: list[Any] = []
        self.by_name: dict[str, Any] = {"deep": {"list": [1]}}
        self.seen, self.last = {1}, deque([1], maxlen=2)
        self.words = Counter("a")
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        y: Tensor = self.linear(x)
        return y


def touch(model: Remembers, what: str) -> None:
    """Change one thing."""
    match what:
        case "count":
            model.count += 1
        case "shape":
            model.shape = (3, 4)
        case "table":
            model.table.add_(1)
        case "log":
            model.log.append(torch.ones(1))
        case "by_name":
            model.by_name["deep"]["list"][0] += 1
        case "seen":
            model.seen.add(5)
        case "last":
            model.last.append(5)
        case "words":
            model.words["a"] += 1


KINDS = ["count", "shape", "table", "log", "by_name", "seen", "last", "words"]


def kept(model: Remembers) -> dict[str, Any]:
    return {kind: str(getattr(model, kind)) for kind in KINDS}


@given(touched=st.lists(st.sampled_from(KINDS)))
def test_what_changes_is_named_and_put_back(touched: list[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Remembers())
    own = model[1]
    assert isinstance(own, Remembers)
    before, objects = kept(own), {kind: id(getattr(own, kind)) for kind in KINDS}
    state = PythonState.of(model)
    for kind in touched:
        touch(own, kind)
    assert {change.key for change in state.changes()} == set(touched)
    state.put_back()
    assert kept(own) == before
    assert {kind: id(getattr(own, kind)) for kind in KINDS} == objects
    assert state.changes() == []


def test_a_model_that_runs_to_be_looked_at() -> None:
    """A global variable of its forward, a new attribute and a buffer are as they were; not so the
    weights, nor what another object keeps.
    """
    model = Remembers()
    with state_untouched(model) as state:
        model(torch.ones(1, 2))
        model.new = torch.ones(1)
        model.get_buffer("total").add_(1)
        changes = state.changes()
    assert [each[:3] for each in changes] == [
        ("Remembers", "new", True),
        ("Remembers", "CALLS", False),
    ]
    assert CALLS == 0
    assert not hasattr(model, "new")
    assert torch.equal(model.get_buffer("total"), torch.zeros(2))


def test_an_equal_value_is_no_change() -> None:
    model = Remembers()
    model.count = 4_096
    state = PythonState.of(model)
    model.count, model.shape = int("4096"), (int("0"), 0)
    assert state.changes() == []


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_compiled_script_has_none() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    state = PythonState.of(model)
    model(torch.ones(1, 2))
    assert state.changes() == []


def test_it_is_put_back_after_an_error() -> None:
    model = Remembers()

    def fails() -> None:
        with state_untouched(model):
            touch(model, "log")
            raise OSError("a forward fails")

    with pytest.raises(OSError, match="a forward fails"):
        fails()
    assert model.log == []


# --- copies --------------------------------------------------------------------------------------


class Locked(nn.Module):
    """Has what nobody can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.lock = 1, threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError, match=r"copy of the model, and 1\.lock .*__deepcopy__"):
        copied(nn.Sequential(nn.Linear(2, 2), Locked()))
    with pytest.raises(TypeError, match=r"1\.lock"):
        pipeline(nn.Sequential(*mlp(6, 3), Locked()), "flush", [1, 1])


def test_a_twin_has_weights_of_its_own_and_the_same_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    bias = model.get_parameter("0.bias").requires_grad_(False)
    other = twin(model, [bias])
    model(torch.ones(4, 2))
    assert other.get_parameter("0.weight") is not model.get_parameter("0.weight")
    assert other.get_parameter("0.bias") is bias
    assert other.get_buffer("1.running_mean") is model.get_buffer("1.running_mean")
