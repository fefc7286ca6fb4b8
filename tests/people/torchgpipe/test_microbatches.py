"""Microbatches, and errors of layers."""

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.people.torchgpipe.gpipe import Calls, assert_as_plain, gpipe, linears, looks


@pytest.mark.parametrize(("rows", "parts"), [(7, [2, 2, 2, 1]), (2, [1, 1]), (8, [2, 2, 2, 2])])
def test_rows_need_not_be_a_multiple_of_chunks(rows: int, parts: list[int]) -> None:
    seen: list[int] = []
    module = gpipe([nn.Linear(1, 1), looks(lambda x: seen.append(len(x)))], [2], chunks=4)
    with warnings.catch_warnings(action="error"):
        assert len(module(torch.rand(rows, 1))) == rows
    assert seen[1:] == parts  # the first tries the model


@pytest.mark.parametrize("outputs", [1, 2])
def test_tuples_of_tensors_go_in_and_out(outputs: int) -> None:
    layers = [nn.Linear(1, 1) for _ in range(outputs)]

    class Each(nn.ModuleList):
        def forward(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(layer(x) for layer, x in zip(self, given, strict=True))

    given = tuple(torch.rand(10, 1, requires_grad=True) for _ in range(outputs))
    made = gpipe([Each(layers)], [1], chunks=2)(given)
    assert isinstance(made, tuple)
    assert [len(each) for each in made] == [10] * outputs
    torch.stack(made).mean().backward()
    assert all(x.grad is not None for x in given)


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (lambda _: "hello", torch.rand(1)),
        (lambda x: (x, "hello"), torch.rand(1)),
        (lambda x: x, "hello"),
        (lambda x: x, 42),
        (lambda x: x, (torch.rand(1), "hello")),
    ],
    ids=["output", "one of the outputs", "input", "number", "one of the inputs"],
)
def test_only_tensors_are_passed_on(layer: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(TypeError, match="pass tensors"):
        gpipe([Calls(layer)], [1])(given)


def test_it_takes_one_argument() -> None:
    with pytest.raises(TypeError):
        gpipe(linears(1), [1])(torch.rand(1, 1), torch.rand(1, 1))


def test_a_plain_modules_gradients() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    assert_as_plain(model, [2, 2], torch.rand(8, 1), chunks=4)


def test_each_stage_has_a_thread_of_its_own() -> None:
    seen: list[tuple[int, str]] = []

    def noting(stage: int) -> nn.Module:
        return looks(lambda _: seen.append((stage, threading.current_thread().name)))

    gpipe([noting(0), noting(1)], [1, 1], chunks=2)(torch.rand(2, 1))
    names = [{name for stage, name in seen[2:] if stage == own} for own in range(2)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]
    assert threading.current_thread().name not in names[0] | names[1]


class Expected(Exception):
    pass


def failing(calls: int) -> nn.Module:
    """Return a layer that fails after some calls, the trial of the model among them."""
    left = [None] * calls

    def fail(x: Tensor) -> Tensor:
        if not left:
            raise Expected
        left.pop()
        return x

    return Calls(fail)


@pytest.mark.parametrize("calls", [0, 1, 2], ids=["trial", "first", "second"])
@pytest.mark.filterwarnings("ignore:the forward changes")
def test_an_error_of_a_layer_is_the_callers(calls: int) -> None:
    module = gpipe([nn.Identity(), nn.Identity(), failing(calls)], [1, 1, 1], chunks=3)
    with pytest.raises(Expected):
        module(torch.rand(3, 1))


def test_stages_before_an_error_stop_early() -> None:
    failed, seen = threading.Event(), list[int]()

    def count(x: Tensor) -> Tensor:
        if len(seen) > 1:  # after the trial, and the microbatch that fails behind
            assert failed.wait(60)
            time.sleep(0.001)  # a second for all
        seen.append(len(x))
        return x

    def fail(x: Tensor) -> Tensor:
        if len(seen) > 1:
            failed.set()
            raise Expected
        return x

    many = 1_000
    module = gpipe([nn.Identity(), Calls(count), Calls(fail)], [1, 1, 1], chunks=many)
    with pytest.raises(Expected):
        module(torch.rand(many, 1))
    assert len(seen) < many


# --- differs


@pytest.mark.parametrize(
    "given", [(torch.zeros(2, 1), torch.zeros(4, 2)), torch.tensor(42)], ids=["tuple", "number"]
)
def test_tensors_have_as_many_rows_as_one_another(given: Any) -> None:
    with pytest.raises(ValueError, match="same first dimension"):
        gpipe([nn.Identity()], [1], chunks=2)(given)
