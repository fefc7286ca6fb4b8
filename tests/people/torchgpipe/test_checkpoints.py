"""Checkpoints."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from tests.people.torchgpipe.gpipe import MODES, Calls, assert_as_plain, gpipe, linears, looks


def flagged(seen: list[tuple[bool, bool]]) -> nn.Module:
    return looks(lambda _: seen.append((pk.is_checkpointing(), pk.is_recomputing())))


@pytest.mark.parametrize(
    ("mode", "chunks", "count"),
    [
        ("always", 2, 2),
        ("except_last", 2, 1),
        ("never", 2, 0),
        ("always", 1, 1),
        ("except_last", 1, 0),
        ("never", 1, 0),
    ],
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_which_microbatches_are_checkpointed(
    mode: Any, chunks: int, count: int, training: bool
) -> None:
    seen: list[tuple[bool, bool]] = []
    module = gpipe([nn.Linear(1, 1), flagged(seen)], [2], chunks=chunks, checkpoint=mode)
    module.train(training)
    module(torch.rand(2, 1)).sum().backward()
    count *= training
    once = [(True, False)] * count + [(False, False)] * (chunks - count)
    assert seen[1:] == once + [(False, True)] * count  # the first tries the model


def test_outside_a_pipeline_nothing_is_checkpointed() -> None:
    seen: list[tuple[bool, bool]] = []
    flagged(seen)(torch.rand(1, requires_grad=True)).backward()
    assert seen == [(False, False)]


def test_a_recomputation_precedes_its_backward() -> None:
    seen: list[str] = []

    class Log(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.number = int(x)
            seen.append(f"forward {ctx.number}")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen.append(f"backward {ctx.number}")
            return gradient

    module = gpipe([Calls(Log.apply)], [1], chunks=2, checkpoint="always")
    x = torch.arange(2.0)[:, None].requires_grad_()
    module(x)
    seen.clear()
    module(x).sum().backward()
    assert seen == ["forward 0", "forward 1", "forward 1", "backward 1", "forward 0", "backward 0"]


def test_weights_get_gradients_if_the_input_needs_none() -> None:
    module = gpipe(linears(1), [1], checkpoint="always")
    module(torch.rand(1, 1)).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_without_gradients_no_graph_is_kept() -> None:
    seen: list[Any] = []
    module = gpipe([nn.Linear(1, 1), looks(lambda x: seen.append(x.grad_fn))], [2], chunks=2)
    with torch.no_grad():
        module(torch.rand(2, 1))
    assert seen == [None] * 3


def test_a_checkpointed_layer_draws_the_same_numbers() -> None:
    found: list[Tensor] = []
    for mode in "always", "never":
        torch.manual_seed(0)
        x = torch.randn(3, 3, requires_grad=True)
        gpipe([nn.Dropout()], [1], checkpoint=mode)(x).norm().backward()
        assert x.grad is not None
        found.append(x.grad)
    assert torch.equal(*found)


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


# --- differs, as edits in place are right


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_may_edit_its_input(mode: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    assert_as_plain(model, [1, 1], torch.rand(4, 1), checkpoint=mode, chunks=2)


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_is_made_once_for_a_recomputation(mode: Any) -> None:
    foo, bar = torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])
    gpipe([Calls(lambda pair: pair[0] * pair[1].add_(1))], [1], checkpoint=mode)(
        (foo, bar)
    ).backward()
    assert foo.grad is not None
    assert foo.grad.item() == 2
