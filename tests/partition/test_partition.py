"""What a pipeline knows of a model once it is cut."""

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, PipelinedModule
from pipekit.layers import skips
from pipekit.partition.partition import partition, sequence_of
from pipekit.partition.probe import probe
from pipekit.schedules import flush
from tests.engine.examples import data, mlp, sgd, values


class Down(skips.Skippable):
    stashes = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", x)
        return x


class Up(skips.Skippable):
    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pop("skip")


def test_skips_from_stage_to_stage_are_numbered() -> None:
    model = nn.Sequential(Down(), nn.Tanh(), Up())
    between = skips.between(skips.links(model), [1, 1, 1])
    found = partition(model, [1, 1, 1], probe(model, torch.randn(2, 6)), between)
    assert [(skip.source, skip.destination) for skip in found.skips] == [(0, 2)]
    assert [dict(stage.stashes) for stage in found.stages] == [{"skip": 0}, {}, {}]
    assert [dict(stage.pops) for stage in found.stages] == [{}, {}, {"skip": 0}]


def test_stages_that_share_a_weight_are_separated() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    found = partition(model, [1, 1], probe(model, torch.randn(2, 6)))
    assert found.ties[0].stages == (0, 1)
    assert list(found.stages[1].numbers) == [None, 2]
    first, second = (stage.module for stage in found.separated().stages)
    assert first is found.stages[0].module
    assert not set(first.parameters()) & set(second.parameters())


def test_a_list_of_modules_is_a_model() -> None:
    layers = list(mlp(6, 6, 3))
    assert [*sequence_of(layers)] == layers
    how = {"balance": [1, 1], "optimizer": sgd, "loss": nn.MSELoss()}
    one = Pipeline(layers, flush(2, 2).take(3), **values(**how))
    other = Pipeline(nn.Sequential(*layers), flush(2, 2).take(3), **values(**how))
    assert one.train(data(3)).losses == other.train(data(3)).losses
    x = torch.randn(4, 6)
    assert torch.equal(PipelinedModule(layers, [1, 1], chunks=2)(x), nn.Sequential(*layers)(x))


class TwoLayers(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.Linear(width, width))


def test_a_sequence_with_a_constructor_of_its_own_is_cut() -> None:
    model = TwoLayers(3)
    found = sequence_of(model)
    assert list(found[1:]) == [model[1]]
    assert list(found.state_dict()) == list(model.state_dict())


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + y


def hooked() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(2, 2))
    layers.register_forward_hook(lambda module, given, output: 2 * output)
    return layers


@pytest.mark.parametrize("model", [Residual(nn.Linear(2, 2)), hooked()])
def test_a_sequence_that_does_more_than_its_layers_is_refused(model: nn.Sequential) -> None:
    with pytest.raises(TypeError, match=r"does more than its layers .*pipekit\.stages"):
        sequence_of(model)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), [nn.Linear(2, 2), "layer"], None])
def test_what_is_no_sequence_is_refused(model: object) -> None:
    with pytest.raises(TypeError, match=r"pipekit\.stages"):
        sequence_of(model)
