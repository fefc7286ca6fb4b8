"""Weights that layers of several stages share: copies that stay equal, and train as one.

The judges are PyTorch's own shared parameters, and the papers' equations.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipekit import schedules
from pipekit.clusters import flat
from pipekit.partition.checks import require_ties_on_one_device
from pipekit.partition.partition import cut as cut_into
from tests.engine.examples import (
    METHODS,
    OPTIMIZERS,
    by_equations,
    cut,
    data,
    different,
    pipeline,
    unlike_equations,
)
from tests.engine.gloo import over_gloo
from tests.engine.updates.test_mixed_precision import (
    assert_same,
    fragile,
    judge_replicated,
    limited,
    trained,
)

TIES = [("0.weight", "4.weight"), ("0.bias", "2.bias", "3.bias"), ("2.weight", "3.weight")]


def tied(*ties: tuple[str, ...]) -> nn.Sequential:
    """Six layers; the parameters of each tie are one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 6),
        nn.Sequential(nn.Tanh(), nn.Dropout(0.2)),
        nn.Linear(6, 6),
        nn.Linear(6, 6),
        nn.Linear(6, 6),
        nn.Linear(6, 3),
    )
    for first, *others in ties:
        for name in others:
            layer, which = name.split(".")
            setattr(model[int(layer)], which, model.get_parameter(first))
    return model


def assert_equal_copies(state: dict[str, torch.Tensor], *ties: tuple[str, ...]) -> None:
    for first, *others in ties:
        assert all(torch.equal(state[first], state[name]) for name in others)


@settings(max_examples=3)
@given(data_=st.data())
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_its_equation(method: str, data_: st.DataObject) -> None:
    """Ties within stages, between two, among three; a stage in several of them."""
    draw = data_.draw
    ties = draw(st.lists(st.sampled_from(TIES), min_size=1, unique=True), "ties")
    balance = cut(6, draw(st.sets(st.integers(1, 5), min_size=1, max_size=4), "edges"))
    options: dict[str, Any] = {
        "optimizer": OPTIMIZERS[draw(st.sampled_from(["nesterov", "adamw"]), "optimizer")],
        "clip_norm": draw(st.sampled_from([None, 0.1]), "clip_norm"),
        "m": len(balance),
    }
    batches = data(draw(st.integers(1, 5), "batches"))
    pipe = pipeline(tied(*ties), method, balance, **options)
    run, states = trained(pipe, batches)
    truth = by_equations(tied(*ties), batches, method, balance, **options)
    assert_same(pipe, run, states, truth)
    assert_equal_copies(pipe.state_dict(), *ties)


@pytest.mark.parametrize(
    ("method", "transport"), [("pipedream", "threads"), ("2bw", "threads"), ("2bw", "distributed")]
)
def test_stages_on_several_workers_and_skipped_updates(method: str, transport: str) -> None:
    layers = fragile(1)
    layers[1].weight = layers[4].layer.weight  # type: ignore[union-attr]
    batches = limited([100.0, math.inf, 0.0, math.inf, math.inf])
    pipe, _ = judge_replicated(layers, method, batches, transport)
    pipe.train(batches)
    assert_equal_copies(pipe.state_dict(), ("1.weight", "4.layer.weight"))


@pytest.mark.parametrize(
    ("method", "balance", "m"),
    [
        ("gpipe", [6], 4),
        ("flush", [1, 2, 1, 2], 1),
        ("flush", [1, 2, 1, 2], 4),
        ("interleaved", [1, 1, 2, 2], 4),
        ("zb_h1", [1, 2, 1, 2], 4),
    ],
)
def test_it_is_pytorchs_shared_parameter(method: str, balance: list[int], m: int) -> None:
    """To the bit: its uses are summed in autograd's order; in the norm it counts once."""
    model = tied(*TIES, ("0.weight", "3.weight", "4.weight"))
    model[1] = nn.Tanh()
    schedule = schedules.zb_h1 if method == "zb_h1" else METHODS[method].schedule
    pipe = pipeline(
        model, schedule(len(balance), m), balance, optimizer=OPTIMIZERS["nesterov"], clip_norm=0.1
    )
    batches = data(4)
    pipe.train(batches)
    optimizer = OPTIMIZERS["nesterov"](list(model.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        for rows, targets in zip(x.tensor_split(m), y.tensor_split(m), strict=True):
            loss = nn.functional.mse_loss(model(rows), targets)
            torch.autograd.backward(loss * (len(rows) / len(x)))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    state = pipe.state_dict()
    assert list(state) == list(model.state_dict())
    assert different(dict(state), dict(model.state_dict())) == []


def test_copies_have_the_options_and_the_loaded_weights_of_one_name() -> None:
    """As a shared parameter in torch, also where the automatic balance tears a tie."""
    groups = {"groups": lambda name, _: {"lr": 0.5} if name == "0.weight" else {}}
    pipe = pipeline(tied(TIES[0]), "flush", "auto", stages=3, **groups)
    pipe.train(data(2))
    assert_equal_copies(pipe.state_dict(), TIES[0])
    pipe.load_state_dict({"4.weight": torch.ones(6, 6)}, strict=False)
    pipe.train(data(1))
    assert_equal_copies(pipe.state_dict(), TIES[0])


def test_torchrun_and_slow_links_give_the_bits_of_threads() -> None:
    """Two pipelines of two stages: sums over the workers of a stage, and of a tie."""

    def trained(**options: Any) -> Any:
        pipe = pipeline(
            tied(*TIES),
            schedules.replicate(schedules.two_bw(2, 2), 2),
            [3, 3],
            optimizer=OPTIMIZERS["adam"],
            clip_norm=0.1,
            loss_scale="dynamic",
            autocast=torch.bfloat16,
            **options,
        )
        run = pipe.train(data(3))
        traffic = run.traffic.sort_values([*run.traffic]).to_numpy().tolist()
        return (run.losses, run.loss_scales, traffic), pipe.state_dict()

    here = trained()
    for there in (
        trained(cluster=flat(4, 1e6)),
        *over_gloo(lambda: trained(transport="distributed"), 4),
    ):
        assert there[0] == here[0]
        assert different(there[1], here[1]) == []


@pytest.mark.parametrize("balance", [[1, 1, 1], [3]], ids=str)
def test_one_layer_in_two_places(balance: list[int]) -> None:
    layer = nn.Linear(6, 6)
    model, batches = nn.Sequential(layer, nn.Tanh(), layer), [(x, x) for x, _ in data(4)]
    assert unlike_equations(model, batches, "2bw", balance) == []


def test_shared_weights_that_are_not_trained() -> None:
    model = tied(TIES[0])
    model.get_parameter("0.weight").requires_grad_(False)
    pipe = pipeline(model, "flush", [3, 3])
    run = pipe.train(data(2))
    assert not (run.traffic["purpose"] == "weights").any()
    assert torch.equal(pipe.state_dict()["4.weight"], model.state_dict()["0.weight"])


def test_the_copy_that_gets_no_gradient_follows() -> None:
    class Unused(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = nn.Sequential(nn.Linear(6, 6), Unused(6, 6), nn.Linear(6, 3))
    model[1].weight = model[0].weight
    before = model.state_dict()["0.weight"].clone()
    pipe = pipeline(model, "pipedream", [1, 1, 1])
    pipe.train(data(3))
    assert_equal_copies(pipe.state_dict(), ("0.weight", "1.weight"))
    assert not torch.equal(pipe.state_dict()["1.weight"], before)


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_gradients_of_copies_are_counted_as_traffic(transport: str) -> None:
    """Of 5 batches with 3 microbatches: worker 1 sends each one's, and 0 the sums by halves."""
    pipe = pipeline(tied(TIES[0]), "flush", [3, 3], transport=transport, m=3)
    traffic = pipe.train(data(5)).traffic
    sent = traffic[traffic["purpose"] == "weights"].set_index("source")["bytes"]
    weight = 36 * 4
    assert sent.to_dict() == {0: 5 * weight, 1: 5 * 3 * weight + 5 * weight // 2}


def test_a_pipelined_module_shares_on_one_device_only() -> None:
    with pytest.raises(ValueError, match=r"'4.weight' is shared by stages on cpu and meta: put"):
        require_ties_on_one_device(
            cut_into(tied(TIES[0]), [3, 3]), [torch.device("cpu"), torch.device("meta")]
        )
