"""Weights loaded, frozen and unfrozen, and modes, after the pipeline has copied the model."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import pipekit as pk
from tests.engine.examples import different
from tests.people.plain import plain_loop
from tests.people.three_layers import CE, batches, network, pipe


def test_weights_loaded_into_the_users_model_later_are_warned_of() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    model.load_state_dict({name: entry * 0.5 for name, entry in model.state_dict().items()})
    with pytest.warns(UserWarning, match=r"has changed since .*load_state_dict\(\)"):
        pipeline.train(data)


def test_weights_loaded_into_it_after_a_run_are_warned_of_too() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    pipeline.train(data)
    pipeline.load_into(model)
    pipeline.train(data)  # on the very weights
    with torch.no_grad():
        model.get_parameter("2.bias").mul_(0.5)
    with pytest.warns(UserWarning, match=r"has changed since .*2\.bias say.*load_state_dict\(\)"):
        pipeline.train(data)


@pytest.mark.parametrize("first", [True, False])
def test_layers_unfrozen_in_the_users_model_later_are_warned_of(first: bool) -> None:
    model, data = network(nn.Tanh()), batches()
    model[0].requires_grad_(False)
    pipeline = pipe(model)
    if not first:
        pipeline.train(data)
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"0\.weight\.requires_grad say.*build the pipeline after"):
        pipeline.train(data)


def test_a_pipeline_that_is_given_the_weights_trains_on_them() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    model.load_state_dict({name: entry * 0.5 for name, entry in model.state_dict().items()})
    pipeline.load_state_dict(model.state_dict())
    pipeline.train(data)
    pipeline.load_into(model)
    pipeline.train(data)
    assert any(not torch.equal(t, model.state_dict()[n]) for n, t in pipeline.state_dict().items())


# --- what is trained, chosen between trainings

ADAM = partial(torch.optim.Adam, lr=0.01)


def tied() -> nn.Sequential:
    shared = nn.Linear(8, 8)
    return nn.Sequential(shared, nn.Tanh(), nn.Linear(8, 8), shared, nn.Linear(8, 3))


@pytest.mark.parametrize("balance", [[3, 2], [4, 1]], ids=str)
def test_weights_are_frozen_and_unfrozen_by_another_pipeline(balance: list[int]) -> None:
    """Each with optimizers of its own, as a plain loop makes another one."""
    model, data = tied(), batches()
    plain = copy.deepcopy(model)
    for name, flag in [("0", False), ("4.bias", False), ("0", True), ("2", False), ("4", False)]:
        for each in model, plain:
            for path, weight in each.named_parameters():
                if f"{path}.".startswith(f"{name}."):
                    weight.requires_grad_(flag)
        pipeline = pipe(model, balance=balance, optimizer=ADAM)
        pipeline.train(data)
        pipeline.load_into(model)
        plain_loop(plain, ADAM, CE, data, microbatches=4)
    assert different(model.state_dict(), plain.state_dict()) == []


# --- modes


def test_a_model_given_in_evaluation_mode_is_warned_of_once() -> None:
    pipeline, data = pipe(network(nn.Dropout(0.5)).eval()), batches()
    pipeline.evaluate(data)
    with pytest.warns(UserWarning, match=r"in evaluation mode.*call model\.train\(\)"):
        pipeline.train(data)
    pipeline.train(data)


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Dropout(0.0)], ids=["tanh", "dropout of 0"])
@pytest.mark.parametrize("recorded", [True, False])
def test_one_that_no_mode_changes_is_not(layer: nn.Module, recorded: bool) -> None:
    model, data = network(layer).eval(), batches()
    pipe(pk.stages(model, data[0][0]) if recorded else model).train(data)


def test_a_pipelined_module_follows_its_own_mode() -> None:
    model, data = network(nn.Dropout(0.5)).eval(), batches()
    module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=1)
    assert torch.equal(module(data[0][0]), model(data[0][0]))
