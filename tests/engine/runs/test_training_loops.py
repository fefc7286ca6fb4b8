"""What people's training loops do beside the steps: rates, groups, states, by the plain loop."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import Batches, data, different, mixed, mlp, pipeline
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.engine.runs.test_early_end import BALANCE, picky, spoilt
from tests.engine.test_failures import OutOfCheeseError
from tests.people.plain import plain_loop


def widths() -> nn.Sequential:
    """With norms, whose weights and biases are not to decay."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))


def by_name(name: str, parameter: Tensor) -> dict[str, Any]:
    if parameter.dim() < 2:
        return {"weight_decay": 0.0}
    return {"lr": 0.05} if name.startswith("3") else {}


adamw = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5)


def plain_groups(model: nn.Module) -> Optimizer:
    """The same groups as anybody would write them."""
    named = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [named["0.weight"]]},
        {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
        {"params": [named["3.weight"]], "lr": 0.05},
    ]
    return adamw(groups)


def plain_epoch(model: nn.Module, optimizer: Optimizer, batches: Batches) -> float:
    """One epoch of a plain loop; returns its mean loss."""
    losses = plain_loop(model, lambda _: optimizer, nn.functional.mse_loss, batches)
    return sum(losses) / len(batches)


def two_stages(model: nn.Sequential, **options: Any) -> pk.Pipeline:
    return pipeline(model, schedules.flush(2, 1), [2, 2], **{"optimizer": adamw, **options})


# --- groups of parameters ------------------------------------------------------------------------


def test_options_by_the_parameters_names() -> None:
    model, batches = widths(), data(4)
    plain_epoch(model, plain_groups(model), batches)
    pipe = two_stages(widths(), groups=by_name)
    pipe.train(batches[:2])
    pipe.train(batches[2:])
    assert different(pipe.state_dict(), model.state_dict()) == []
    options = {name: entry["options"] for name, entry in pipe.optimizer_state().items()}
    assert {name: o["weight_decay"] for name, o in options.items()} == {
        "0.weight": 0.5,
        "0.bias": 0.0,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "3.weight": 0.5,
        "3.bias": 0.0,
    }
    assert options["3.weight"]["lr"] == 0.05


# --- learning rates ------------------------------------------------------------------------------


@TRANSPORTS
def test_a_scheduler_by_metric_as_in_a_plain_loop(transport: str) -> None:
    def plateau(optimizer: Optimizer) -> Any:
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)

    model, batches = widths(), data(3)
    optimizer = adamw(model.parameters())
    scheduler = plateau(optimizer)
    pipe = two_stages(widths(), lr_scheduler=plateau, lr_step="call", transport=transport)
    for _ in range(4):
        loss = plain_epoch(model, optimizer, batches)
        scheduler.step(loss)
        losses = pipe.train(batches).losses
        assert sum(losses) / 3 == loss
        pipe.step_lr(sum(losses) / 3)
    assert optimizer.param_groups[0]["lr"] < 0.01
    rates = {entry["options"]["lr"] for entry in pipe.optimizer_state().values()}
    assert rates == {optimizer.param_groups[0]["lr"]}
    assert different(pipe.state_dict(), model.state_dict()) == []


def test_a_scheduler_by_epoch_also_before_the_first() -> None:
    model, batches = widths(), data(2)
    optimizer = adamw(model.parameters())
    scheduler = ExponentialLR(optimizer, 0.5)
    pipe = two_stages(widths(), lr_scheduler=partial(ExponentialLR, gamma=0.5), lr_step="call")
    optimizer.step()  # as torch wants it before a scheduler's step
    for _ in range(3):
        scheduler.step()
        pipe.step_lr()
        plain_epoch(model, optimizer, batches)
        pipe.train(batches)
    assert different(pipe.state_dict(), model.state_dict()) == []


@TRANSPORTS
def test_rates_are_set_between_calls(transport: str) -> None:
    model, batches = widths(), data(4)
    optimizer = adamw(model.parameters())
    pipe = two_stages(widths(), transport=transport)
    for rate, part in ((0.02, batches[:2]), (0.001, batches[2:])):
        optimizer.param_groups[0]["lr"] = rate
        plain_epoch(model, optimizer, part)
        pipe.set_learning_rate(rate)
        pipe.train(part)
    assert different(pipe.state_dict(), model.state_dict()) == []


def test_each_optimizer_is_open_to_changes() -> None:
    pipe = two_stages(widths())
    pipe.train(data(2))
    pipe.each_optimizer(lambda optimizer: optimizer.state.clear())
    assert not any(entry["state"] for entry in pipe.optimizer_state().values())
    pipe.train(data(1))
    assert all(entry["state"]["step"] == 1 for entry in pipe.optimizer_state().values())


def test_mistakes_name_the_remedy() -> None:
    pipe = two_stages(widths())
    with pytest.raises(ValueError, match="lr_step='call'"):
        pipe.step_lr()
    rates: Any = "0.1", -0.1, math.nan
    for rate in rates:
        with pytest.raises(ValueError, match="must be a number of at least 0"):
            pipe.set_learning_rate(rate)
    pipe = two_stages(widths(), lr_scheduler=ReduceLROnPlateau)
    with pytest.raises(ValueError, match="waits for a metric"):
        pipe.train(data(1))


@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), (0.1, "float"), ([], "list")])
def test_groups_are_told_what_to_return(given: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"returned a {kind} for .*weight: return a dict"):
        two_stages(widths(), groups=lambda name, parameter: given)


def constant(output: Tensor, target: Tensor) -> Tensor:
    return torch.tensor(3.0)


def detached(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.detach(), target)


@pytest.mark.parametrize("loss", [constant, detached])
def test_a_loss_that_trains_nothing_is_refused(loss: Any) -> None:
    """As in a plain loop, where its backward() raises; no weights change."""
    pipe = two_stages(widths(), loss=loss)
    with pytest.raises(ValueError, match="loss does not depend on anything that is trained"):
        pipe.train(data(2))
    assert different(pipe.state_dict(), widths().state_dict()) == []


# --- weights in and out --------------------------------------------------------------------------


@first_over_processes("trained", [True, False])
def test_a_state_is_loaded_by_its_names(trained: bool, transport: str) -> None:
    source = pipeline(mixed(), "flush", [4, 4])
    source.train(data(2))
    pipe = pipeline(mixed(), "pipedream", [2, 3, 3], transport=transport)
    if trained:
        pipe.train(data(1))
    pipe.load_state_dict(source.state_dict())
    assert different(pipe.state_dict(), source.state_dict()) == []
    model = mixed()
    assert pipe.load_into(model) is model
    assert different(dict(model.state_dict()), source.state_dict()) == []
    assert pipe.evaluate(data(2)) == pytest.approx(source.evaluate(data(2)), rel=1e-6)
    plain = pipeline(mixed(), "pipedream", [2, 3, 3])
    if trained:  # the optimizers keep their state
        plain.train(data(1))
    plain.load_state_dict(source.state_dict())
    assert pipe.train(data(2)).losses == plain.train(data(2)).losses


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("0.weight"), "'0.weight' is missing"),
        (lambda state: state.update(a=state.pop("0.bias")), "'0.bias' is missing and 'a' is not"),
        (lambda state: state.update({"0.bias": state["0.bias"].numpy()}), r"torch\.as_tensor"),
        (lambda state: state.update({"0.bias": torch.zeros(5)}), r"'0.bias' is \[8\] .* \[5\]"),
    ],
)
def test_a_state_of_another_model_is_refused(
    change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    pipe = pipeline(mixed(), "flush", [4, 4])
    before, state = pipe.state_dict(), {n: t + 1 for n, t in pipe.state_dict().items()}
    change(state)
    with pytest.raises((TypeError, ValueError), match=message):
        pipe.load_state_dict(state)
    assert different(pipe.state_dict(), before) == []


@TRANSPORTS
def test_a_state_mends_a_pipeline_whose_stages_stand_apart(transport: str) -> None:
    pipe = pipeline(picky(0, backward=True), "flush", BALANCE, transport=transport)
    state = pipe.state_dict()
    with pytest.raises(OutOfCheeseError, match="in the backward"):
        pipe.train(spoilt(2, bad=1))
    pipe.load_state_dict(state)
    assert different(pipe.state_dict(), state) == []
    assert len(pipe.train(data(2)).losses) == 2


# --- what a run tells ----------------------------------------------------------------------------


@TRANSPORTS
def test_outputs_and_losses_of_each_microbatch(transport: str) -> None:
    batches = data(2)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport=transport, recompute="always")
    run = pipe.train(batches[:1], watch=pk.Watch(outputs=True))
    model = mlp(6, 6, 3)
    with torch.no_grad():
        outputs = [model(x) for x in batches[0][0].split(2)]
    assert len(run.outputs) == 1
    assert all(map(torch.allclose, run.outputs[0], outputs))
    assert [sum(losses) for losses in run.microbatch_losses] == pytest.approx(run.losses)
    parts = zip(outputs, batches[0][1].split(2), strict=True)
    expected = [nn.functional.mse_loss(*part).item() / 4 for part in parts]
    assert run.microbatch_losses[0] == pytest.approx(expected)
    assert pipe.train(batches[1:]).outputs == []


@TRANSPORTS
def test_a_loss_that_is_not_finite_ends_the_run_before_it_does_harm(transport: str) -> None:
    batches = data(6)
    batches[3][0][2] = float("nan")
    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], transport=transport, finite=True)
    plain = pipeline(mlp(6, 6, 3), "2bw", [1, 1])
    with pytest.raises(FloatingPointError, match="the loss is nan: its batch has changed no weig"):
        pipe.train(batches)
    plain.train(batches[:3])
    assert different(pipe.state_dict(), plain.state_dict()) == []


# --- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2])
def test_on_one_stage_dropout_can_be_the_plain_loops(m: int) -> None:
    """With a shuffling loader, which draws from the same generator between the batches."""
    x, y = data(1, rows=32)[0]

    def loader() -> Iterator[Any]:
        return iter(DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))

    model = mixed()
    sgd = partial(torch.optim.SGD, lr=0.1)
    torch.manual_seed(5)
    plain_loop(model, sgd, nn.functional.mse_loss, loader(), m)
    pipe = pipeline(mixed(), schedules.flush(1, m), optimizer=sgd, seed=None)
    torch.manual_seed(5)
    pipe.train(loader())
    assert different(pipe.state_dict(), dict(model.state_dict())) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batches": 5}, TypeError, "must be an iterable, e.g. a list of .input, target."),
        ({"batches": None}, TypeError, "a DataLoader, not NoneType"),
        ({"batches": {"x": torch.ones(4, 6)}}, TypeError, "put it into a list"),
        ({"batches": iter(()), "steps": 3}, ValueError, "no batches"),
        ({"steps": 0}, ValueError, "at least 1 batch, or None for all, not 0"),
        ({"steps": 2.0}, ValueError, "at least 1 batch, or None for all, not 2.0"),
        ({"steps": "3"}, ValueError, "at least 1 batch, or None for all, not '3'"),
        ({"on_batch": True}, TypeError, "on_batch must be a function, not bool"),
    ],
)
def test_arguments_are_refused_before_training(arguments: Any, error: Any, message: str) -> None:
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    with pytest.raises(error, match=message):
        pipe.train(**({"batches": data(2)} | arguments))
    pipe.train(data(1))


@pytest.mark.parametrize("inputs", ["tokens", ("tokens", "mask"), None])
def test_a_batch_without_what_the_model_takes_is_told_of(inputs: Any) -> None:
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], inputs=inputs)
    batch = {"ids": torch.ones(4, 6)} if inputs else {}
    names = r"\['tokens'" if inputs else r"\[\]"
    with pytest.raises(ValueError, match=f"the model takes {names}.*say by inputs="):
        pipe.train([batch])
