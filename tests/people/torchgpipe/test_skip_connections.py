"""Skips."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit.layers.skips import Skippable
from tests.people.torchgpipe.gpipe import MODES, assert_as_plain, gpipe


class Stash(Skippable):
    """Leaves its input, and gives another."""

    stashes = ("skip",)

    def __init__(self, left: Callable[[Tensor], Tensor | None] = lambda x: x) -> None:
        super().__init__()
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", self.left(x))
        return x * 2


class Pop(Skippable):
    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        skip: Tensor | None = self.pop("skip")
        return x if skip is None else x + skip


class PopAndStash(Skippable):
    pops, stashes = ("skip",), ("other",)


class PopOther(Skippable):
    pops = ("other",)


def accepted(*layers: nn.Module) -> pk.PipelinedModule:
    return gpipe(layers, [1] * len(layers))


def test_a_tensor_that_is_stashed_is_popped() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(nn.Sequential(Stash(), Pop())(x), 3 * x)
    assert torch.equal(accepted(Stash(), Pop())(x), 3 * x)


def test_none_may_be_stashed() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(accepted(Stash(lambda _: None), Pop())(x), 2 * x)


@pytest.mark.parametrize(
    ("split", "mode", "without"),
    [
        (split, mode, ["portals"] * ((row + column) % 2))
        for row, split in enumerate([[3], [1, 2], [2, 1], [1, 1, 1]])
        for column, mode in enumerate(MODES)
    ],
    ids=str,
)
def test_a_skip_goes_past_a_layer(split: list[int], mode: Any, without: list[str]) -> None:
    def conv(end: nn.Module) -> list[nn.Module]:
        return [end, nn.Conv2d(3, 3, 1)]

    model = nn.Sequential(nn.Sequential(*conv(Stash())), nn.Conv2d(3, 3, 1), nn.Sequential(Pop()))
    x = torch.rand(30, 3, 4, 4)
    assert_as_plain(model, split, x, chunks=3, checkpoint=mode, without=without)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("mode", MODES)
def test_no_skip_is_left_behind(mode: Any, training: bool) -> None:
    left: list[weakref.ref[Tensor]] = []

    def keep(x: Tensor) -> Tensor:
        y = x * 1
        left.append(weakref.ref(y))
        return y

    module = gpipe([nn.Linear(1, 1), Stash(keep), Pop()], [2, 1], chunks=2, checkpoint=mode)
    module.train(training)
    with torch.set_grad_enabled(training):
        output = module(torch.rand(10, 1))
    if training:
        output.norm().backward()
    assert len(left) >= 3
    assert [each() for each in left] == [None] * len(left)


def test_skips_match_by_their_names() -> None:
    accepted(Stash(), Pop())
    accepted(Stash(), PopAndStash(), PopOther())
    accepted(*(layer.isolate(name) for name in "ab" for layer in (Stash(), Pop())))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([Stash], "stashes 'skip', which no layer pops"),
        ([Pop], "pops 'skip', which no layer stashes"),
        ([Stash, Stash, Pop], "'skip' is in stashes of both layer 0 .* and layer 1"),
        ([Stash, Pop, Pop], "'skip' is in pops of both layer 1 .* and layer 2"),
        ([Stash, Pop, Stash, Pop], "'skip' is in stashes of both layer 0 .* and layer 2"),
    ],
)
def test_skips_that_do_not_match_are_refused(layers: list[type[nn.Module]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        accepted(*(layer() for layer in layers))


def test_what_a_layer_does_not_declare_it_neither_stashes_nor_pops() -> None:
    for layer, said in (Stash(), "stashes 'skip' without"), (Pop(), "pops 'skip' without"):
        layer.stashes = layer.pops = ()
        with pytest.raises(ValueError, match=said):
            layer(torch.rand(1))


def test_what_nobody_has_stashed_is_not_popped() -> None:
    with pytest.raises(LookupError, match="which nothing has stashed"):
        Pop()(torch.rand(1))


def test_what_a_layer_declares_it_stashes() -> None:
    class Forgets(Stash):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(LookupError, match="skip"):
        accepted(Forgets(), Pop())(torch.rand(4, 1))


def test_namespaces_stay_with_copies() -> None:
    layer = Stash().isolate("a")
    assert copy.deepcopy(layer).full("skip") == layer.full("skip") == "a/skip"
    assert layer.full("skip") != Stash().isolate("b").full("skip")


# --- differs


def test_a_layer_may_have_both_ends_of_a_skip() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(accepted(nn.Sequential(Stash(), Pop()))(x), 3 * x)
