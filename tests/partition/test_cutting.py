"""A model cut into stages: what passes between them, how they are balanced, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pipekit as pk
from pipekit import Pipeline, PipelinedModule, schedules
from pipekit.layers import skips
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.checks import require_no_tensor_hooks
from pipekit.partition.partition import partition, require_unshared, sequence_of
from pipekit.partition.probe import probe
from pipekit.partition.stages import stages
from pipekit.schedules import flush
from tests.engine.examples import data, mlp, sgd, values
from tests.layers.test_skips import Pop, Stash
from tests.planning.enumeration import splits, sums


def test_skips_from_stage_to_stage_are_numbered() -> None:
    model = nn.Sequential(Stash(), nn.Tanh(), Pop())
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


whole_costs = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9)


@given(whole_costs, st.integers(1, 9))
def test_the_costliest_stage_is_as_cheap_as_can_be(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    balance = balance_by_cost(costs, stages)
    assert (len(balance), sum(balance)) == (stages, len(costs))
    assert min(balance) >= 1
    assert max(sums(costs, balance)) == min(
        max(sums(costs, split)) for split in splits(len(costs), stages)
    )


def test_of_equal_splits_the_first_stage_is_the_shortest() -> None:
    assert balance_by_cost([1.0, 1.0, 9.0], 2) == [2, 1]
    assert balance_by_cost([1.0, 9.0, 1.0, 1.0], 3) == [1, 1, 2]
    assert balance_by_cost([0.0, 0.0, 0.0], 2) == [1, 2]


def test_shared_buffers_may_be_in_one_stage() -> None:
    layer = nn.BatchNorm1d(6)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    require_unshared(model, [3])
    with pytest.raises(ValueError, match="stages 0 and 1 share the buffer"):
        require_unshared(model, [2, 1])


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_are_seen(register: str) -> None:
    model = mlp(6, 6, 3)
    require_no_tensor_hooks(model)
    hook = getattr(model[0].weight, register)(lambda _: None)
    with pytest.raises(ValueError, match=r"'0.weight' has a hook .*register_step_pre_hook"):
        require_no_tensor_hooks(model)
    hook.remove()
    require_no_tensor_hooks(model)


@pytest.mark.parametrize("model", [nn.Linear, "resnet18"])
def test_what_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"is a class: make a model|must be an nn\.Module, not str"):
        stages(model, torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Linear(2, 2), [], "a list, holds no tensor .*of a loader the first one"),
        (nn.Linear(2, 2), torch.zeros(0, 2), "has no rows.*at least two"),
        (nn.Linear(2, 2), torch.zeros(1, 2), "has one row.*at least two"),
        (nn.Linear(2, 2, device="meta"), torch.zeros(2, 2), "on device 'meta'.*load its weights"),
    ],
)
def test_what_cannot_be_tried_is_refused(model: Any, example: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stages(model, example)


@pytest.mark.parametrize(
    "use",
    [
        lambda model: pk.Pipeline(
            model,
            schedules.flush(2, 2),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            loss=nn.MSELoss(),
        ),
        lambda model: pk.PipelinedModule(model, [1, 1], chunks=2),
        lambda model: pk.profile(model, torch.zeros(2, 6)),
    ],
    ids=["Pipeline", "PipelinedModule", "profile"],
)
def test_a_model_without_data_is_refused_wherever_it_would_be_run(
    use: Callable[[nn.Sequential], object],
) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False, device="meta"))
    with pytest.raises(ValueError, match=r"on device 'meta' without data.*load its weights"):
        use(model)


def test_an_example_with_a_target_is_told_of() -> None:
    with pytest.raises(TypeError) as error:
        stages(nn.Linear(2, 2), (torch.zeros(2, 2), torch.zeros(2)))
    assert "leave out what only the loss takes" in error.value.__notes__[-1]
