"""What torchgpipe 0.0.7's tests require of ``GPipe``, of :class:`pipekit.PipelinedModule`.

Here are the behaviours that no other test has: those of the module, its checkpoints and errors are in
tests/engine/module, of skips and deferred batch norm in tests/layers.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from tests.layers.test_skips import Pop, Stash

MODES = ["never", "always", "except_last"]


class Calls(nn.Module):
    """Calls a function, which returns the output."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def gpipe(model: Iterable[nn.Module], split: Sequence[int], **how: Any) -> pk.PipelinedModule:
    """Return the module as torchgpipe's tests make it: on the CPU, one microbatch."""
    return pk.PipelinedModule(
        list(model), split, **{"chunks": 1, "devices": ["cpu"] * len(split), **how}
    )


def assert_as_plain(model: nn.Sequential, split: list[int], x: Tensor, **how: Any) -> None:
    """Require output and gradients of the plain module, up to rounding by microbatches."""
    module, found = gpipe(copy.deepcopy(model), split, **how), []
    for each in module, model:
        given = x.clone().requires_grad_()
        output = each(given)
        output.mean().backward()
        found.append([output, given.grad, *(p.grad for p in each.parameters())])
    torch.testing.assert_close(found[0], found[1])


def test_its_arguments_are_attributes() -> None:
    module = gpipe([nn.Linear(1, 1)], (1,), chunks=42, checkpoint="always")
    assert (module.balance, module.chunks, module.checkpoint) == ([1], 42, "always")
    assert module.devices == [torch.device("cpu")]


@pytest.mark.parametrize("split", [[2], [1, 1]], ids=str)
def test_it_is_indexed_as_a_sequence(split: list[int]) -> None:
    a, b = model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    module = gpipe(model, split)
    assert [*module] == [a, b]
    assert (module[0], module[1], module[-1], module[-2]) == (a, b, b, a)
    with pytest.raises(IndexError):
        module[2]


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (lambda x: (x, "hello"), torch.rand(1)),
        (lambda x: x, 42),
        (lambda x: x, (torch.rand(1), "hello")),
    ],
    ids=["one of the outputs", "input", "one of the inputs"],
)
def test_only_tensors_are_passed_on(layer: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(TypeError, match="pass tensors"):
        gpipe([Calls(layer)], [1])(given)


@pytest.mark.parametrize(
    "given", [(torch.zeros(2, 1), torch.zeros(4, 2)), torch.tensor(42)], ids=["tuple", "number"]
)
def test_tensors_have_as_many_rows_as_one_another(given: Any) -> None:
    with pytest.raises(ValueError, match="same first dimension"):
        gpipe([nn.Identity()], [1], chunks=2)(given)


def test_stages_before_an_error_stop_early() -> None:
    failed, seen, many = threading.Event(), list[int](), 1_000

    def count(x: Tensor) -> Tensor:
        if len(seen) > 1:  # after the trial, and the microbatch that fails behind
            assert failed.wait(60)
            time.sleep(0.001)  # a second for all
        seen.append(len(x))
        return x

    def fail(x: Tensor) -> Tensor:
        if len(seen) > 1:
            failed.set()
            raise ArithmeticError("mine")
        return x

    module = gpipe([nn.Identity(), Calls(count), Calls(fail)], [1, 1, 1], chunks=many)
    with pytest.raises(ArithmeticError, match="mine"):
        module(torch.rand(many, 1))
    assert len(seen) < many


def test_stages_that_draw_at_once_draw_the_same_again() -> None:
    def dropouts(x: Tensor) -> Tensor:
        for _ in range(100):
            x = nn.functional.dropout(x, p=0.001)
        return x

    x = torch.rand(10, 10, requires_grad=True)
    module = gpipe([Calls(dropouts), Calls(dropouts)], [1, 1], chunks=10, checkpoint="always")
    y = module(x)
    y.norm().backward()
    assert x.grad is not None
    assert torch.equal(y.bool(), x.grad.bool())


def test_a_function_of_autograd_may_return_its_input() -> None:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    layers = nn.Sequential(Calls(Identity.apply), Calls(Identity.apply))
    assert_as_plain(layers, [1, 1], torch.rand(42), checkpoint="always")


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_may_edit_its_input_and_does_so_once_for_a_recomputation(mode: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    assert_as_plain(model, [1, 1], torch.rand(4, 1), checkpoint=mode, chunks=2)
    one, other = torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])
    edits = Calls(lambda pair: pair[0] * pair[1].add_(1))
    gpipe([edits], [1], checkpoint=mode)((one, other)).backward()
    assert one.grad == 2


@pytest.mark.parametrize("split", [[1, 2], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_skip_goes_past_a_layer(split: list[int], mode: Any) -> None:
    def conv() -> nn.Module:
        return nn.Conv2d(3, 3, 1)

    model = nn.Sequential(nn.Sequential(Stash(), conv()), conv(), nn.Sequential(Pop()))
    assert_as_plain(model, split, torch.rand(6, 3, 4, 4), chunks=3, checkpoint=mode)
