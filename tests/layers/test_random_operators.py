"""Random operators are caught in one thread, and in those that PyTorch has work for it."""

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pipekit.layers import random_operators
from pipekit.layers.random_operators import Drawing, RandomOperator


def names_caught(*draws: Any) -> list[str]:
    """Return which operators are caught while functions run."""

    class Noting(Drawing):
        def run(self, operator: RandomOperator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            found.append(str(operator.call))
            return operator.call(*args, **kwargs)

    found: list[str] = []
    with Noting():
        for draw in draws:
            draw()
    return found


def test_composites_are_caught_where_they_draw() -> None:
    lstm = nn.LSTM(2, 2, num_layers=2, dropout=0.5)
    assert names_caught(lambda: lstm(torch.ones(3, 1, 2))) == ["aten.bernoulli_.float"]


@pytest.mark.parametrize("draw", [torch.rand, torch.randperm], ids=["rand", "randperm"])
def test_draws_within_a_dispatch_mode_are_caught(draw: Any) -> None:
    """Such as the counter of operations: what it runs has no other key."""

    def counted() -> None:
        with FlopCounterMode(display=False):
            draw(3)

    assert names_caught(counted) == [f"aten.{draw.__name__}.default"]


def test_an_inner_context_replaces_an_outer() -> None:
    inner: list[str] = []
    outer = names_caught(
        lambda: torch.rand(3),
        lambda: inner.extend(names_caught(lambda: torch.randn(3))),
        lambda: torch.rand(3),
    )
    assert outer == ["aten.rand.default"] * 2
    assert inner == ["aten.randn.default"]


def test_operators_with_an_accelerators_own_kernel_are_caught_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such kernels may draw without any other operator."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key

    def own_dropout(operator: str, kernel: str) -> bool:
        return has(operator, kernel) or (operator, kernel) == ("aten::dropout", "AutogradHPU")

    def known() -> list[str]:
        names = torch._C._dispatch_get_all_op_names()
        return [str(each) for each in random_operators._random_operators(names)]

    assert "aten.dropout.default" not in known()
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", own_dropout)
    assert "aten.dropout.default" in known()
    assert "aten.feature_dropout.default" not in known()


class DrawsDeepInBackward(torch.autograd.Function):
    """Draws in a backward within backwards, so many that PyTorch takes another thread."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if not ctx.depth:
            return gradient * torch.rand(3), None
        x = torch.ones(3, requires_grad=True)
        with torch.enable_grad():
            y: Tensor = DrawsDeepInBackward.apply(x, ctx.depth - 1)
        y.backward(gradient)
        assert x.grad is not None
        return x.grad, None


@pytest.mark.parametrize("depth", [0, 70])
def test_draws_are_refused_in_backwards_of_any_thread(depth: int) -> None:
    x = torch.ones(3, requires_grad=True)
    y: Tensor = DrawsDeepInBackward.apply(x, depth)
    with Drawing(), pytest.raises(ValueError, match="random numbers in its back"):
        y.sum().backward()


def test_draws_in_threads_of_scripts_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # scripts are on their way out
        forked = torch.jit.script(_forked)
    with pytest.raises(RuntimeError, match="a layer draws random numbers"):
        names_caught(lambda: forked(torch.ones(3)))


def _dropped(x: Tensor) -> Tensor:
    return torch.dropout(x, 0.5, True)


def _forked(x: Tensor) -> Tensor:
    y: Tensor = torch.jit.wait(torch.jit.fork(_dropped, x))
    return y


@pytest.mark.parametrize("lacks", ["the key", "the operators' names"])
def test_a_torch_without_the_key_is_refused(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> Any:
        raise RuntimeError(f"could not parse dispatch key: {name}")

    if lacks == "the key":
        monkeypatch.setattr(torch._C, "_dispatch_key_parse", unknown)
    else:
        monkeypatch.delattr(torch._C, "_dispatch_get_all_op_names")
    with pytest.raises(
        RuntimeError, match=r"^torch \S+ lacks a private part .*: install an earlier"
    ):
        random_operators.prepare()


def test_operators_that_a_library_brings_later_are_caught_too() -> None:
    """As in a process that was started by one that had looked at the operators."""
    random_operators.prepare()
    library = torch.library.Library("late", "DEF")
    library.define("draw(Tensor x) -> Tensor", tags=torch.Tag.nondeterministic_seeded)
    library.impl("draw", torch.rand_like, "CPU")
    random_operators.prepare()
    assert len(names_caught(lambda: torch.ops.late.draw(torch.ones(1)))) == 1
    library._destroy()
