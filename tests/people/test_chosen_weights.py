"""Weights loaded, frozen and unfrozen, and modes, after the pipeline has copied the model."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import different
from tests.people.plain import CE, SGD, batches, network, pipe, plain_loop
from tests.people.test_losses import no_word


class Reads(nn.BatchNorm1d):
    """Reads more than weights and numbers."""

    def __init__(self) -> None:
        super().__init__(8)
        self.scales, self.mask, self.act = [1.0], torch.ones(8), torch.relu
        self.config = SimpleNamespace(shift=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x) * self.scales[0] * self.mask + self.config.shift)


CHANGES: dict[str, Callable[[Any], object]] = {
    "weights": lambda model: model.load_state_dict(
        {n: w / 2 for n, w in model.state_dict().items()}
    ),
    "data": lambda model: model[0].weight.data.mul_(0.5),
    "all signs of data": lambda model: model[0].weight.data.neg_(),
    "other data": lambda model: setattr(model[0].weight, "data", torch.zeros(8, 8)),
    "a buffer": lambda model: model[1].running_mean.add_(1.0),
    "another weight": lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(8))),
    "one more weight": lambda model: setattr(model[0], "scale", nn.Parameter(torch.ones(8))),
    "a weight fewer": lambda model: model[0].register_parameter("bias", None),
    "requires_grad": lambda model: model[0].requires_grad_(False),
    "another layer": lambda model: setattr(model, "1", nn.Tanh()),
    "a weight that is computed": lambda model: parametrizations.weight_norm(model[2]),
    "a forward": lambda model: setattr(model[0], "forward", torch.tanh),
    "a hook": lambda model: model[0].register_forward_hook(lambda *_: None),
    "a hook of gradients": lambda model: model[2].register_full_backward_hook(lambda *_: None),
    "a hook of a weight": lambda model: model[0].weight.register_hook(lambda g: None),
    "the mode of a layer": lambda model: model[1].eval(),
    "an element of a list": lambda model: model[1].scales.append(model[1].scales.pop() / 2),
    "a tensor": lambda model: model[1].mask.zero_(),
    "a function": lambda model: setattr(model[1], "act", torch.tanh),
    "a field of an object": lambda model: setattr(model[1].config, "shift", 1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("first", [True, False])
def test_changes_of_the_users_model_are_warned_of(
    change: Callable[[Any], Any], first: bool
) -> None:
    model, data = network(Reads()), batches(1)
    pipeline = pipe(model)
    if not first:
        pipeline.train(data)
        pipeline.load_into(model)
    model.eval()  # as somebody does who looks at it
    model.train()
    with no_word():
        pipeline.evaluate(data)
    change(model)
    with pytest.warns(UserWarning, match=r"has changed since .*load_state_dict\(\)"):
        pipeline.train(data)
    with no_word():
        pipeline.train(data)


def test_changes_of_a_recorded_model_are_warned_of() -> None:
    model, data = network(nn.Tanh()), batches(1)
    pipeline = pipe(pk.stages(model, data[0][0]))
    model[2] = nn.Linear(8, 3)
    with pytest.warns(UserWarning, match=r"2 itself"):
        pipeline.train(data)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_a_pipelined_module_act(change: Callable[[Any], Any]) -> None:
    """Also those of the first layer, of which a later stage has a copy."""
    (x, y), first, found = batches(1)[0], nn.Linear(8, 8), []
    layers = nn.Sequential(first, Reads(), nn.Linear(8, 8), first, nn.Linear(8, 3))
    for model in pk.PipelinedModule(copy.deepcopy(layers), [2, 3], chunks=1), layers:
        model(x)
        change(model)
        CE(model(x), y).backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    torch.testing.assert_close(*found)


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


def assert_chosen_as_in_the_plain_loop(
    model: nn.Sequential, balance: list[int], choices: list[tuple[str, bool]], **settings: Any
) -> None:
    """Train and choose in turns; the plain loop has a new optimizer each time."""
    data, plain = batches(), copy.deepcopy(model)
    pipeline = pipe(model, balance=balance, optimizer=ADAM, **settings)
    for name, flag in choices:
        pipeline.requires_grad_(name, flag)
        for path, weight in plain.named_parameters(remove_duplicate=False):
            weight.requires_grad_(
                flag if f"{path}.".startswith(f"{name}.") else weight.requires_grad
            )
        pipeline.train(data)
        plain_loop(plain, ADAM, CE, data, microbatches=4)
    found = dict(pipeline.load_into(model).named_parameters())
    assert [n for n, weight in plain.named_parameters() if not torch.equal(found[n], weight)] == []
    pipeline.close()


CHOICES = [("0", False), ("4.bias", False), ("0", True), ("2", False), ("4", False), ("4", True)]


@pytest.mark.parametrize("balance", [[3, 2], [4, 1]], ids=str)
def test_weights_are_frozen_and_unfrozen_between_trainings(balance: list[int]) -> None:
    assert_chosen_as_in_the_plain_loop(tied(), balance, CHOICES)


@pytest.mark.slow
def test_processes_freeze_and_unfreeze_alike() -> None:
    assert_chosen_as_in_the_plain_loop(tied(), [3, 2], CHOICES[:3], transport="distributed")


def test_a_stage_may_be_frozen_as_a_whole_and_trained_later() -> None:
    assert_chosen_as_in_the_plain_loop(network(nn.Tanh()), [2, 1], [("0", False), ("0", True)])


def test_what_a_recorded_model_trains_has_the_models_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.body(x).tanh())
            return y

    net, data = Net(), batches()
    pipeline = pk.Pipeline(
        pk.stages(net, data[0][0]), schedules.flush(2, 4), optimizer=SGD, loss=CE
    )
    pipeline.requires_grad_(["body"], False)
    pipeline.train(data)
    changed = different(pipeline.state_dict(), net.state_dict())
    assert len(changed) == 2
    assert all("head" in each for each in changed)


def test_modules_with_extra_states_are_frozen_too() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"n": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    model = nn.Sequential(Extra(8, 8), nn.Tanh(), nn.Linear(8, 3))
    assert_chosen_as_in_the_plain_loop(model, [2, 1], [("0", False), ("0.bias", True)])


def test_weights_that_are_not_there_are_not_chosen() -> None:
    with pytest.raises(ValueError, match=r"no parameter 'layer4', .*'0\.weight' say"):
        pipe(network(nn.Tanh())).requires_grad_("layer4")


class Broken(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from self[:2]
        raise ZeroDivisionError


@pytest.mark.parametrize("method", ["flush", "two_bw"])
def test_after_resume_optimizers_go_on_whatever_is_chosen(method: str, tmp_path: Path) -> None:
    """Also between passes of the chosen weights' microbatches, as at 2BW's checkpoint."""
    plain, data, schedule, found = (
        network(nn.Tanh()),
        batches(4),
        getattr(schedules, method)(2, 4),
        [],
    )
    pipeline = pipe(plain, schedule, optimizer=ADAM)
    pipeline.requires_grad_("0", False)
    with pytest.raises(ZeroDivisionError):
        pipeline.train(Broken(data), checkpoints=tmp_path)
    for each in pipeline, pipe(plain, schedule, optimizer=ADAM):
        assert each.resume(tmp_path) == 0
        each.requires_grad_("0")
        each.requires_grad_("2.bias", False)
        assert len(each.train(data).losses) == 4
        found.append(each.state_dict())
    assert different(*found) == []
    if method == "flush":
        optimizer = ADAM(plain.parameters())
        for some, frozen in ((data[:2], ["0.weight", "0.bias"]), (data[2:], ["2.bias"])):
            for name, weight in plain.named_parameters():
                weight.requires_grad_(name not in frozen)
            plain_loop(plain, lambda _: optimizer, CE, some, microbatches=4)
        assert different(found[0], plain.state_dict()) == []


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
