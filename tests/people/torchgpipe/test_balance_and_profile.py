"""Balance, and the profiles that it is made from."""

import copy

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit.planning import balance
from pipekit.profiling import LayerProfile, Profile
from tests.engine.examples import different
from tests.people.torchgpipe.gpipe import Calls


@pytest.mark.parametrize(
    ("costs", "stages", "split"), [([1, 2, 3, 4, 5, 6], 2, [4, 2]), ([0, 0], 2, [1, 1])]
)
def test_blocks_are_about_equal(costs: list[float], stages: int, split: list[int]) -> None:
    assert balance(costs, stages, by="block") == balance(costs, stages) == split


@pytest.mark.parametrize(("costs", "stages"), [([42], 0), ([42], -1), ([], 1), ([42], 2)])
def test_there_are_as_many_blocks_as_asked_for(costs: list[float], stages: int) -> None:
    with pytest.raises(ValueError, match="stage"):
        balance(costs, stages, by="block")


def costs(*layers: tuple[float, float, float]) -> Profile:
    """Return a profile of seconds, bytes of weights and bytes of activations."""
    return Profile(
        tuple(
            LayerProfile(str(n), seconds / 2, seconds / 2, 0.0, weights, saved)
            for n, (seconds, weights, saved) in enumerate(layers)
        )
    )


@pytest.mark.parametrize("place", [0, 1, 2], ids=["time", "weights", "activations"])
@pytest.mark.parametrize("up", [True, False])
def test_layers_are_balanced_by_time_or_size(place: int, up: bool) -> None:
    layers = [tuple(float(n) * (place == k) for k in range(3)) for n in range(1, 7)]
    profile = costs(*(layers if up else layers[::-1]))  # type: ignore[arg-type]
    two, of = pk.clusters.flat(2, bandwidth=1e9), "size" if place else "time"
    assert pk.plan(profile, two, "balance", of=of).balance == ([4, 2] if up else [2, 4])


@pytest.mark.filterwarnings("ignore:the layers' times")
def test_profiling_leaves_the_model_as_it_is() -> None:
    trained: list[bool] = []

    class Look(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            trained.append(self.training)
            return super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Look(3))
    model(torch.rand(2, 3, 4, 4)).norm().backward()
    model.eval()
    before, gradient = copy.deepcopy(model.state_dict()), copy.deepcopy(model[0].weight.grad)
    trained.clear()
    pk.profile(model, torch.rand(2, 3, 4, 4), repeats=1, loss=None, others=0)
    assert set(trained) == {True}
    assert not model[1].training
    assert different(model.state_dict(), before) == []
    assert torch.equal(model[0].weight.grad, gradient)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:the layers' times")
def test_layers_with_several_outputs_are_profiled() -> None:
    twin, total = Calls(lambda x: (x, x.detach())), Calls(lambda pair: pair[0] + pair[1])
    layers = nn.Sequential(nn.Linear(1, 1), twin, total)
    assert len(pk.profile(layers, torch.rand(1, 1), repeats=1, loss=None, others=0)) == 3
