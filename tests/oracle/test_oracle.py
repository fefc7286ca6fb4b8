"""The judge judged: the oracle against ordinary training loops, layer by layer."""

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from pipekit import LossScale, oracle
from pipekit.layers.seeded import layer_seed
from tests.oracle.examples import (
    OPTIMIZERS,
    PIPEDREAM,
    SEQUENTIAL,
    Batches,
    Factory,
    assert_equal,
    images,
    network,
    same_weights,
    train,
)


def step_lr(optimizer: Optimizer) -> LRScheduler:
    return StepLR(optimizer, step_size=2, gamma=0.5)


def ordinary_training(
    model: nn.Sequential, batches: Batches, m: int, optimizer: Factory
) -> tuple[list[dict[str, Tensor]], list[float]]:
    """A training loop as anybody writes it: one optimizer, clipping, a schedule of the rate."""
    stepper = optimizer(list(model.parameters()))
    scheduler = step_lr(stepper)
    criterion = nn.CrossEntropyLoss()
    states, losses, k = [], [], 0
    for inputs, targets in batches:
        stepper.zero_grad()
        losses.append(0.0)
        for x, y in zip(inputs.tensor_split(m), targets.tensor_split(m), strict=True):
            value = x
            for index, layer in enumerate(model):
                torch.manual_seed(layer_seed(11, index, k))
                value = layer(value)
            part = criterion(value, y)
            if m > 1:
                part = part * (len(x) / len(inputs))
            torch.autograd.backward(part)
            losses[-1] += part.item()
            k += 1
        nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        stepper.step()
        scheduler.step()
        states.append(copy.deepcopy(model.state_dict()))
    return states, losses


@pytest.mark.parametrize(
    ("name", "balance", "m"),
    [("momentum", [9], 1), *((name, [2, 3, 3, 1], 4) for name in OPTIMIZERS)],
)
def test_sequential_is_an_ordinary_training_loop_bit_for_bit(
    name: str, balance: list[int], m: int
) -> None:
    """With dropout, batch norm, clipping, a scheduler, and ragged microbatches (10 rows in 4)."""
    run = train(
        "sequential",
        balance,
        microbatches=m,
        optimizer=OPTIMIZERS[name],
        clip_norm=0.4,
        lr_scheduler=step_lr,
        seed=11,
    )
    states, losses = ordinary_training(network(), images(), m, OPTIMIZERS[name])
    assert run.losses == losses
    for weights, state in zip(run.weights[1:], states, strict=True):
        assert_equal(weights, {key: state[key] for key in weights})
    assert_equal(run.weights[-1] | run.buffers, states[-1])


@pytest.mark.parametrize("alias", SEQUENTIAL[1:])
def test_methods_that_flush_are_sequential(alias: str) -> None:
    one, other = train("sequential", [9]), train(alias, [4, 5])
    assert same_weights(one, other)
    assert one.losses == other.losses


@pytest.mark.parametrize(("balance", "m"), [([9], 1), ([2, 3, 3, 1], 4)])
def test_2bw_is_one_update_late_on_every_stage(balance: list[int], m: int) -> None:
    """Gradient t of the run is the first gradient of a new run that starts at W(max(t-1, 0))."""
    run = train("2bw", balance, microbatches=m, clip_norm=0.4)
    for t, batch in enumerate(images()):
        model = network()
        model.load_state_dict(run.weights[max(t - 1, 0)], strict=False)
        fresh = train(
            "sequential", [9], model=model, batches=[batch], microbatches=m, first_microbatch=t * m
        )
        assert_equal(run.gradients[t], fresh.gradients[0])
        assert run.losses[t] == fresh.losses[0]
    assert not same_weights(run, train("sequential", [9], microbatches=m, clip_norm=0.4))


def without_dropout() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(72, 12),
        nn.Tanh(),
        nn.Linear(12, 8),
        nn.Tanh(),
        nn.Linear(8, 5),
    )


def test_without_stashing_the_gradient_is_that_of_no_weights() -> None:
    """It equals neither candidate's true gradient once a stage has been updated in between.

    But the last stage, whose forward reads the newest weights and has none after it, and the first
    minibatch are right; and the loss is still that of the forward's weights.
    """
    run = train("pipedream_no_stashing", [2, 2, 2], model=without_dropout())
    stage_of = {"1": 1, "3": 2, "5": 3}
    for t, batch in enumerate(images()):
        stashed = {
            name: run.weights[max(t - 3 + stage_of[name[0]], 0)][name] for name in run.weights[0]
        }
        true = []
        for candidate in (stashed, run.weights[t]):
            model = without_dropout()
            model.load_state_dict(candidate)
            true.append(train("sequential", [6], model=model, batches=[batch]))
        assert run.losses[t] == true[0].losses[0]
        got = run.gradients[t]
        if t == 0:
            assert_equal(got, true[0].gradients[0])
            continue
        assert torch.equal(got["5.weight"], true[0].gradients[0]["5.weight"])
        # Stage 2's gradient comes through stage 3 alone, whose version is the newest both times.
        assert torch.equal(got["3.weight"], true[0].gradients[0]["3.weight"])
        for reference in true:
            difference = got["1.weight"] - reference.gradients[0]["1.weight"]
            assert difference.norm() > 1e-4 * got["1.weight"].norm()


@settings(max_examples=15)
@given(
    method=st.sampled_from([*PIPEDREAM, *SEQUENTIAL]),
    name=st.sampled_from(list(OPTIMIZERS)),
    clip=st.sampled_from([None, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_with_one_stage_nothing_is_late(
    method: str, name: str, clip: float | None, seed: int
) -> None:
    options: dict[str, Any] = {"optimizer": OPTIMIZERS[name], "clip_norm": clip, "seed": seed}
    run, reference = train(method, [9], **options), train("sequential", [9], **options)
    assert same_weights(run, reference)
    assert run.losses == reference.losses
    assert_equal(run.buffers, reference.buffers)


@settings(max_examples=15)
@given(
    cuts=st.sets(st.integers(1, 8), max_size=5),
    method=st.sampled_from(["sequential", "2bw"]),
    m=st.integers(1, 4),
)
def test_partition_does_not_matter_where_versions_agree(
    cuts: set[int], method: str, m: int
) -> None:
    edges = [0, *sorted(cuts), 9]
    balance = [b - a for a, b in itertools.pairwise(edges)]
    run = train(method, balance, microbatches=m, clip_norm=0.4)
    assert same_weights(run, train(method, [9], microbatches=m, clip_norm=0.4))


def test_cutting_the_graph_at_stages_changes_no_bit() -> None:
    """The oracle leaves the graph whole; a pipeline cuts it and hands gradients over."""
    model, (inputs, targets) = network(), images(1)[0]
    value, ends, starts = inputs, [], []
    for index, layer in enumerate(model):
        torch.manual_seed(layer_seed(0, index, 0))
        if index:
            ends.append(value)
            value = value.detach().requires_grad_()
            starts.append(value)
        value = layer(value)
    torch.autograd.backward(nn.functional.cross_entropy(value, targets))
    for end, start in zip(reversed(ends), reversed(starts), strict=True):
        torch.autograd.backward(end, start.grad)
    by_stage = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_equal(train("sequential", [9], batches=images(1)).gradients[0], by_stage)


# --- Conventions ---------------------------------------------------------------------------------


def test_microbatches_weigh_by_their_rows() -> None:
    """10 rows in 4 microbatches are 3, 3, 2, 2: the mean is still that of the batch."""
    whole = train("sequential", [6], model=without_dropout())
    parts = train("sequential", [6], model=without_dropout(), microbatches=4)
    torch.testing.assert_close(parts.gradients[0], whole.gradients[0])
    assert parts.losses == pytest.approx(whole.losses, rel=1e-4)


def test_a_summed_loss_is_not_scaled() -> None:
    options: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(reduction="sum"),
        "optimizer": lambda p: SGD(p, lr=1e-3),
    }
    whole = train("sequential", [6], model=without_dropout(), **options)
    parts = train("sequential", [6], model=without_dropout(), microbatches=4, **options)
    torch.testing.assert_close(parts.gradients[0], whole.gradients[0])
    assert parts.losses == pytest.approx(whole.losses, rel=1e-4)


def test_gradients_are_those_before_clipping() -> None:
    free, clipped = train("sequential", [9]), train("sequential", [9], clip_norm=1e-3)
    assert_equal(free.gradients[0], clipped.gradients[0])
    assert not same_weights(free, clipped)


class Combine(nn.Module):
    def forward(self, value: dict[str, Any]) -> Tensor:
        first, second = value["pair"]
        return torch.cat([first, second, value["third"]], dim=1)


def test_inputs_and_targets_of_several_tensors() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(10, 6), torch.randn(10, 4)
    layer = nn.Linear(6, 4)
    structured = (
        {"pair": (x[:, :2], x[:, 2:3]), "third": x[:, 3:]},
        [y[:, :1], y[:, 1:]],
    )
    options: dict[str, Any] = {"microbatches": 4, "loss": nn.MSELoss()}
    plain = train("sequential", [1], model=nn.Sequential(layer), batches=[(x, y)], **options)
    options["loss"] = lambda output, target: nn.functional.mse_loss(output, torch.cat(target, 1))
    run = train(
        "sequential",
        [1, 1],
        model=nn.Sequential(Combine(), layer),
        batches=[structured],
        **options,
    )
    assert run.losses == plain.losses
    assert torch.equal(run.weights[1]["1.weight"], plain.weights[1]["0.weight"])


def test_layers_run_in_training_mode() -> None:
    evaluated = network().eval()
    assert same_weights(train("2bw", [4, 5]), train("2bw", [4, 5], model=evaluated))


@pytest.mark.parametrize("option", [{"clip_norm": 1.0}, {"loss_scale": LossScale()}], ids=str)
def test_stages_that_update_at_different_times_settle_nothing(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="update at different times"):
        train("pipedream", [4, 5], replicas=[2, 1], **option)


def test_caller_is_left_untouched() -> None:
    model = network().eval()
    weight = model.get_parameter("0.weight")
    weight.grad = torch.ones_like(weight)
    before = copy.deepcopy(model.state_dict())
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    oracle.train(
        model,
        images(),
        method="pipedream",
        balance=[4, 5],
        optimizer=OPTIMIZERS["adam"],
        loss=nn.CrossEntropyLoss(),
        threads=threads + 1,
    )
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert_equal(model.state_dict(), before)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert not model.training


def test_result_does_not_depend_on_the_callers_random_state() -> None:
    one = train("pipedream", [4, 5])
    model = network()
    torch.manual_seed(999)
    assert same_weights(one, train("pipedream", [4, 5], model=model))
    assert not same_weights(one, train("pipedream", [4, 5], seed=1))
    assert not same_weights(one, train("pipedream", [4, 5], first_microbatch=5))


@pytest.mark.parametrize(
    ("method", "balance", "m", "message"),
    [
        ("pipedreams", [4, 5], 1, "unknown method"),
        ("2bw", [4, 4], 1, "does not fit"),
        ("2bw", [9, 0], 1, "does not fit"),
        ("2bw", [], 1, "does not fit"),
        ("pipedream", [4, 5], 2, "give them 1"),
        ("gpipe", [4, 5], 0, "at least 1"),
        ("gpipe", [4, 5], 11, "10 rows for 11"),
    ],
)
def test_wrong_input_is_explained(method: str, balance: list[int], m: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(method, balance, microbatches=m)


def test_shares_are_the_order_in_which_workers_sum() -> None:
    """Gradients 1e8, 1, -1e8 and 1 in float32: their sum depends on who adds which, and when."""
    slopes = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    model = nn.Sequential(nn.Linear(1, 1, bias=False))

    def gradient(shares: list[list[int]] | None) -> float:
        run = oracle.train(
            model,
            [(slopes, torch.zeros(4, 1))],
            method="sequential",
            balance=[1],
            microbatches=4,
            shares=None if shares is None else [shares],
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            loss=SumLoss(),
        )
        return run.gradients[0]["0.weight"].item()

    assert gradient(None) == gradient([[0, 1, 2, 3]]) == 1
    assert gradient([[3, 2, 1, 0]]) == 0
    assert gradient([[0, 2], [1, 3]]) == 2
    with pytest.raises(ValueError, match="each of the 4 microbatches of a batch once"):
        gradient([[0, 1], [1, 3]])


class SumLoss(nn.Module):
    """The sum of the outputs."""

    reduction = "sum"

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output + target).sum()
