"""The user's door: repeated training, evaluation, names, and nothing of the user's touched."""

import copy
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pipekit import Watch
from pipekit.schedules import check
from tests.engine.examples import (
    METHODS,
    MODELS,
    OPTIMIZERS,
    by_equations,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    trained,
    unlike,
)
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.people.test_torchgpipe import Calls


def test_in_a_cell_of_a_notebook_pipelines_and_runs_are_one_line() -> None:
    """However many batches there were."""
    pipe = pipeline(mlp(6, 6, 6, 3), "flush", [1, 2])
    assert (
        repr(pipe) == "<Pipeline PipeDream-Flush over threads: 2 workers, 2 stages of 1 2 layers>"
    )
    told = repr(pipe.train(data(3)))
    assert told.startswith("<Run of PipeDream-Flush: 3 batches in ")
    assert "losses 1" in told


# --- train, and train again ----------------------------------------------------------------------


@TRANSPORTS
def test_two_halves_are_the_whole(transport: str) -> None:
    """The optimizer, its scheduler, batch norm and the random numbers go on where they were."""
    options: dict[str, Any] = {
        "optimizer": OPTIMIZERS["adam"],
        "lr_scheduler": lambda o: StepLR(o, 2, 0.5),
        "seed": 3,
    }
    batches = data(6, rows=10)
    truth = by_equations(mixed(), batches, "flush", [2, 3, 3], **options)
    pipe = pipeline(mixed(), "flush", [2, 3, 3], transport=transport, **options)
    assert unlike(trained(pipe, batches[:3], batches[3:5], batches[5:]), truth) == []


def test_evaluation_in_between_changes_nothing() -> None:
    batches = data(4)
    plain, evaluated = (pipeline(mixed(), "pipedream", [2, 3, 3]) for _ in range(2))
    evaluated.evaluate(batches)
    for part in (batches[:2], batches[2:]):
        losses = [pipe.train(part).losses for pipe in (plain, evaluated)]
        assert losses[0] == losses[1]
        assert evaluated.evaluate(batches) == evaluated.evaluate(batches)
    assert different(plain.state_dict(), evaluated.state_dict()) == []


# --- evaluate ------------------------------------------------------------------------------------


def hits(output: Tensor, target: Tensor) -> float:
    return (output.argmax(1) == target.argmax(1)).float().mean().item()


@first_over_processes("name", ["mixed", "pairs"])
def test_evaluate_is_the_unsplit_model(name: str, transport: str) -> None:
    batches = data(rows=[8, 5, 3])
    pipe = pipeline(MODELS[name](), "pipedream", [2, 3, 3], transport=transport)
    pipe.train(batches)
    model = MODELS[name]()
    model.load_state_dict(pipe.state_dict())
    model.eval()
    with torch.no_grad():
        loss = sum(nn.MSELoss()(model(x), y).item() * len(x) for x, y in batches) / 16
        right = sum(hits(model(x), y) * len(x) for x, y in batches) / 16
    assert pipe.evaluate(batches) == pytest.approx(loss, rel=1e-6)
    assert pipe.evaluate(batches, hits) == pytest.approx(right, rel=1e-6)


def test_evaluating_a_summed_loss_gives_the_mean_over_rows() -> None:
    model, batches = mlp(6, 3), data(rows=[8, 5])
    pipe = pipeline(model, "flush", [1], loss=nn.MSELoss(reduction="sum"))
    with torch.no_grad():
        expected = sum(((model(x) - y) ** 2).sum().item() for x, y in batches) / 13
    assert pipe.evaluate(batches) == pytest.approx(expected, rel=1e-6)


# --- state_dict, and what is the user's ----------------------------------------------------------


def test_names_and_order_are_those_of_the_unsplit_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        OrderedDict(
            first=nn.Linear(6, 6),
            norm=nn.BatchNorm1d(6),
            block=nn.Sequential(OrderedDict(inner=nn.Linear(6, 6), act=nn.Tanh())),
            last=nn.Linear(6, 3),
        )
    )
    pipe = pipeline(model, "pipedream", [1, 2, 1])
    assert different(pipe.state_dict(), model.state_dict()) == []
    pipe.train(data(3))
    state = pipe.state_dict()
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    assert all(not tensor.requires_grad for tensor in state.values())


def test_a_state_is_a_copy() -> None:
    pipe = pipeline(mixed(), "2bw", [4, 4])
    pipe.train(data(2))
    before = pipe.state_dict()
    kept = {name: tensor.clone() for name, tensor in before.items()}
    pipe.train(data(2))
    assert different(before, kept) == []
    for tensor in before.values():
        tensor.zero_()
    assert different(pipe.state_dict(), before) != []


@TRANSPORTS
@pytest.mark.filterwarnings("ignore:the model is in evaluation mode")
@pytest.mark.parametrize("balance", [[4, 4], "auto"], ids=str)
def test_the_users_things_are_untouched(transport: str, balance: list[int] | str) -> None:
    model = mixed().eval()
    weight = model.get_parameter("0.weight")
    weight.grad = torch.ones_like(weight)
    before = copy.deepcopy(model.state_dict())
    batches = data(3)
    kept = copy.deepcopy(batches)
    torch.manual_seed(12)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    pipe = pipeline(model, "flush", balance, stages=2, transport=transport)
    pipe.train(batches)
    pipe.evaluate(batches)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert different(dict(model.state_dict()), dict(before)) == []
    assert not any(module.training for module in model.modules())
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))
    for (x, y), (u, v) in zip(batches, kept, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_the_model_is_taken_as_it_was_when_it_was_given() -> None:
    model = mixed()
    pipe = pipeline(model, "flush", [4, 4])
    nn.init.zeros_(model.get_parameter("0.weight"))
    assert different(pipe.state_dict(), mixed().state_dict()) == []
    truth = by_equations(mixed(), data(2), "flush", [4, 4])
    with pytest.warns(UserWarning, match="the model has changed since"):
        assert pipe.train(data(2)).losses == truth.losses


def test_training_inside_no_grad_trains() -> None:
    with torch.no_grad():
        run = pipeline(mixed(), "flush", [4, 4], recompute="always").train(data(3))
    assert run.losses == by_equations(mixed(), data(3), "flush", [4, 4]).losses


# --- batches -------------------------------------------------------------------------------------


@TRANSPORTS
def test_a_shuffling_loader(transport: str) -> None:
    """Its order comes from the user's generator, though the layers draw random numbers as well."""
    x, y = data(1, rows=32)[0]
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    torch.manual_seed(77)
    expected = [tuple(batch) for batch in loader]
    pipe = pipeline(mixed(), "flush", [2, 3, 3], transport=transport)
    torch.manual_seed(77)
    run = pipe.train(loader)
    assert run.losses == by_equations(mixed(), expected, "flush", [2, 3, 3]).losses


class Augmented:
    """Draws random numbers as it goes."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(6):
            yield torch.randn(8, 6), torch.randn(8, 3)


@TRANSPORTS
def test_data_that_draws_random_numbers_while_layers_do(transport: str) -> None:
    torch.manual_seed(78)
    expected = list(Augmented())
    pipe = pipeline(mixed(), "pipedream", [2, 3, 3], transport=transport)
    torch.manual_seed(78)
    run = pipe.train(Augmented())
    assert run.losses == by_equations(mixed(), expected, "pipedream", [2, 3, 3]).losses


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from data(3)


@pytest.mark.parametrize(
    "batches",
    [
        lambda: DataLoader(Stream(), batch_size=None),
        lambda: tuple(data(3)),
        lambda: [list(batch) for batch in data(3)],
    ],
    ids=["loader of a stream", "tuple", "lists"],
)
def test_other_kinds_of_batches(batches: Any) -> None:
    run = pipeline(mixed(), "flush", [4, 4]).train(batches())
    assert run.losses == by_equations(mixed(), data(3), "flush", [4, 4]).losses


# --- what a run tells ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_buffers_and_passes_in_flight_are_counted(method: str) -> None:
    stages, batches = 4, data(9)
    run = pipeline(mixed(), method, [2, 2, 2, 2]).train(batches)
    assert run.peak_in_flight == check(run.schedule).peak_in_flight
    expected = {
        "2bw": (2,) * stages,
        "pipedream": (4, 3, 2, 1),
        "vertical_sync": check(run.schedule).peak_versions,
        "interleaved": (2, 2),  # one of each stage
    }
    assert run.weight_slots == expected.get(method, (1,) * stages)


@first_over_processes("method", ["pipedream", "gpipe"])
def test_the_trace_is_the_schedule_as_it_ran(method: str, transport: str) -> None:
    run = pipeline(mixed(), method, [2, 3, 3], transport=transport).train(data(3))
    frame = run.trace.frame
    assert (frame["end_s"] >= frame["start_s"]).all()
    assert frame["start_s"].min() == 0
    for worker, tasks in enumerate(run.schedule.workers):
        own = frame[frame["worker"] == worker]
        rows = list(zip(own["op"], own["stage"], own["microbatch"], own["version"], strict=True))
        assert rows == [(t.op.name, t.stage, t.microbatch, t.version) for t in tasks]
        assert (own["start_s"].diff().dropna() >= 0).all()
        assert (own["start_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()
    forward = frame[frame["op"] == "FORWARD"].set_index(["stage", "microbatch"])
    for stage, k in forward.index:
        if stage:
            assert forward.loc[(stage, k), "start_s"] >= forward.loc[(stage - 1, k), "end_s"]
    assert run.trace.label == "measured"
    assert 0 < run.trace.makespan_s <= run.wall_s
    with pytest.raises(ValueError, match="batches must be at least 1, not 0"):
        run.first_batches(0)
    first = run.first_batches(1).frame
    ends = frame[frame["microbatch"].isin(run.schedule.batches[0])]["end_s"].max()
    assert first["end_s"].max() == ends
    assert len(first) == (frame["start_s"] < ends).sum() < len(frame)


@TRANSPORTS
def test_progress_shows_the_loss(transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    def slower_than_the_bars_shortest_interval(x: Tensor) -> Tensor:
        time.sleep(0.15)
        return x

    model = nn.Sequential(Calls(slower_than_the_bars_shortest_interval), nn.Linear(6, 3))
    run = pipeline(model, "flush", [1, 1], m=1, transport=transport).train(
        data(3), watch=Watch(progress=True)
    )
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert f"loss={run.losses[-1]:.4f}" in shown


# --- construction --------------------------------------------------------------------------------


def test_automatic_balance() -> None:
    pipe = pipeline(mlp(6, 50, 50, 50, 3), "flush", stages=2)
    pipe.train(data(1))
    assert pipe.balance == [2, 2]
    assert pipe.stages == pipe.workers == 2
