"""Balances that fit a model or not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit import schedules
from pipekit.partition.checks import require_no_tensor_hooks
from pipekit.partition.partition import require_unshared, sequence_of
from pipekit.partition.stages import stages
from tests.engine.examples import mlp


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


def test_any_module_is_told_how_it_becomes_layers() -> None:
    with pytest.raises(TypeError, match=r"not Linear: pipekit.stages\(model, example_batch\)"):
        sequence_of(nn.Linear(2, 2))


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
