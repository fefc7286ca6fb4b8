"""Skips as torchgpipe has them: None, a layer between two others, names isolated one by one."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import PipelinedModule, Profile
from pipekit.clusters import V100
from pipekit.layers.skips import Skippable, inlined
from tests.engine.examples import by_equations, data, pipeline, trained, unlike


class First(Skippable):
    """Stashes nothing if its input's first number is negative, or in evaluation nothing at all."""

    stashes = ("before",)

    def __init__(self, forgets: bool = False, never: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.forgets, self.never = forgets, never

    def forward(self, x: Tensor) -> Tensor:
        if self.forgets and torch.is_grad_enabled():
            return x
        nothing = self.never or bool(x[0, 0] < 0)
        self.stash("before", None if nothing else x)
        y: Tensor = self.linear(x)
        return y


class Between(Skippable):
    """Pops what the first one stashes, and stashes for the last one."""

    stashes = ("behind",)
    pops = ("before",)

    def forward(self, x: Tensor) -> Tensor:
        popped = self.pop("before")
        self.stash("behind", None if popped is None else popped * 2)
        return x.tanh() if popped is None else x + popped


class Last(Skippable):
    pops = ("behind",)

    def forward(self, x: Tensor) -> Tensor:
        popped = self.pop(*self.pops)
        return x if popped is None else x * popped


class Only(Last):
    """The last one of two."""

    pops = ("before",)


def pair(**how: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(First(**how), nn.Tanh(), Only(), nn.Linear(6, 3))


def model() -> nn.Sequential:
    """Two pairs, one within the other, by way of layers between them."""
    torch.manual_seed(0)
    return nn.Sequential(
        First().isolate("outer"),
        First().isolate("inner"),
        Between().isolate("inner", only=["before"]).isolate("deep", only="behind"),
        nn.Linear(6, 6),
        Last().isolate("deep"),
        Between().isolate("outer"),
        Last().isolate("outer"),
        nn.Linear(6, 3),
    )


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_skip_may_be_none(transport: str, recompute: str) -> None:
    """For some microbatches, and then it has no gradient."""
    batches, balance = data(3), [1, 1, 2, 1, 3]
    assert len({bool(x[row, 0] < 0) for x, _ in batches for row in range(0, 8, 2)}) == 2
    truth = by_equations(model(), batches, "flush", balance)
    pipe = pipeline(model(), "flush", balance, transport=transport, recompute=recompute)
    found = trained(pipe, batches, watch=pk.Watch(memory=True))
    assert unlike(found, truth) == []
    whole = model().eval()
    whole.load_state_dict(found.state)
    with torch.no_grad():
        expected = [nn.functional.mse_loss(whole(x), y).item() for x, y in batches]
    assert pipe.evaluate(batches) == pytest.approx(sum(expected) / 3, rel=1e-6)


@pytest.mark.parametrize("without", [(), ("portals",)])
def test_none_in_a_pipelined_module(without: tuple[str, ...]) -> None:
    x, _ = data(1)[0]
    piped = PipelinedModule(model(), [2, 2, 2, 2], chunks=4, without=without)
    whole = model()
    expected = torch.cat([whole(part) for part in x.split(2)])
    output = piped(x)
    torch.testing.assert_close(output, expected)
    for each in (output, expected):
        each.square().sum().backward()
    for p, q in zip(piped.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert torch.equal(inlined(model())(x), model()(x))


def test_none_has_no_cost() -> None:
    layers = pair(never=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers too short to be timed one by one
        costs = pk.profile(layers, torch.randn(4, 6), repeats=1)
    assert [skip.bytes for skip in costs.skips] == [0]
    assert Profile.analytic(layers, torch.randn(4, 6), V100).skips[0].bytes == 0


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_skip_that_is_stashed_in_the_trial_only(transport: str) -> None:
    pipe = pipeline(pair(forgets=True), "flush", [1, 1, 2], transport=transport)
    with pytest.raises(LookupError, match=r"no layer has stashed 'before' in this for") as caught:
        pipe.train(data(1))
    assert not isinstance(caught.value, KeyError)


def test_a_name_that_is_not_there_cannot_be_isolated() -> None:
    with pytest.raises(
        ValueError, match=r"Between has no 'after' to isolate: it stashes \('behind'"
    ):
        Between().isolate("outer", only=["before", "after"])
