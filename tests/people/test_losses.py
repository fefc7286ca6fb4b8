"""Users' losses: equal to the plain loop, refused, or warned of before training."""

import copy
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from tests.people.plain import plain_loop

ANOTHER = r"the loss of 8 rows is .* microbatches together .* cut by rows"
CE = F.cross_entropy
calls = 0
history: list[float] = []


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def data(count: int = 3, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(rows, 8), torch.randint(3, (rows,))) for _ in range(count)]


def piped(loss: Any, m: int = 2, model: nn.Module | None = None, **options: Any) -> pk.Pipeline:
    layers: Any = net() if model is None else model
    return pk.Pipeline(layers, schedules.flush(2, m), optimizer=sgd, loss=loss, **options)


@contextmanager
def no_word() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def equal(pipeline: pk.Pipeline, losses: list[float], model: nn.Module, want: list[float]) -> None:
    torch.testing.assert_close(losses, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dict(pipeline.state_dict()), dict(model.state_dict()))


# Losses of the whole batch.


def simclr(output: Tensor, target: Tensor) -> Tensor:
    z = F.normalize(output)
    alike = (z @ z.t() * 5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return CE(alike, torch.arange(len(z)) ^ 1)


def hard_examples(output: Tensor, target: Tensor) -> Tensor:
    each = CE(output, target, reduction="none")
    return each[each > 1].mean()


def summed(output: Tensor, target: Tensor) -> Tensor:
    return CE(output, target, reduction="sum")


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return CE(output, target, weight=torch.tensor([1.0, 5.0, 9.0]))


def ignoring(output: Tensor, target: Tensor) -> Tensor:
    return CE(output, target, ignore_index=0)


WHOLE = [
    simclr,
    hard_examples,
    summed,
    weighted,
    ignoring,
    lambda o, y: summed(o, y),
    pk.MeanOver(CE, count=len),  # a mean where a sum is wanted
]


@pytest.mark.parametrize("loss", WHOLE, ids=lambda loss: getattr(loss, "__name__", type(loss)))
def test_a_loss_of_the_whole_batch_is_warned_of(loss: Any) -> None:
    pipeline = piped(loss)
    with pytest.warns(UserWarning, match=ANOTHER) as said:
        pipeline.train(data())
    assert len(said) == 1
    model = net()
    with no_word():  # it is asked once, and one microbatch a batch is the whole batch
        pipeline.train(data())
        pipeline = piped(loss, m=1)
        losses = pipeline.train(data()).losses
    plain = (lambda o, y: loss(o, y) / 8) if isinstance(loss, pk.MeanOver) else loss
    equal(pipeline, losses, model, plain_loop(model, sgd, plain, data()))


def test_mixed_precision_is_asked_too() -> None:
    with pytest.warns(UserWarning, match=ANOTHER):
        piped(summed, execution=pk.Execution(autocast=torch.bfloat16)).train(data())


def test_replicas_are_asked_once() -> None:
    schedule = schedules.replicate(schedules.flush(2, 2), 2)
    with pytest.warns(UserWarning, match="together") as said:
        pk.Pipeline(net(), schedule, optimizer=sgd, loss=summed).train(data())
    assert len(said) == 1


def test_entries_that_are_cut_are_named() -> None:
    def loss(output: Tensor, batch: Any) -> Any:
        return summed(output, batch["labels"]) / batch["items"]

    batch = {"x": torch.randn(8, 8), "labels": torch.randint(3, (8,)), "items": torch.tensor(8)}
    execution = pk.Execution(inputs="x")
    with pytest.warns(UserWarning, match=r"with 'x', 'labels' cut by rows.*'sum'"):
        piped(loss, execution=execution).train([batch])
    loss.reduction = "sum"  # type: ignore[attr-defined]
    model = net()
    with no_word():
        pipeline = piped(loss, execution=execution)
        losses = pipeline.train([batch]).losses
    want = plain_loop(model, sgd, CE, [(batch["x"], batch["labels"])])
    equal(pipeline, losses, model, want)


class WithLoss(nn.Module):
    """Computes its own loss, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        each = CE(self.layer(batch["x"]), batch["y"], reduction="none", ignore_index=0)
        return {"loss": each.sum() / batch["items"] if "items" in batch else each.mean()}


def own_loss(output: dict[str, Tensor], batch: Any) -> Tensor:
    return output["loss"]


@pytest.mark.parametrize("items", [True, False])
def test_a_loss_that_the_model_computes(items: bool) -> None:
    entries = ["x", "y", "items"] if items else ["x", "y"]
    x, y = data()[0]
    batch = {"x": x, "y": y, "items": torch.tensor(8.0)}

    class Picked(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: batch[name] for name in entries}

    model = nn.Sequential(Picked(), nn.Sequential(WithLoss()))
    execution = pk.Execution(inputs=lambda batch: {name: batch[name] for name in entries})
    pipeline = piped(own_loss, model=model, execution=execution)
    if items:
        with pytest.warns(UserWarning, match="the loss of 8 rows is"):
            pipeline.train([batch])
    else:
        with no_word():
            pipeline.train([batch])


# Losses that are a mean over rows, or say what they are.


class Counting(nn.Module):
    """Counts its calls, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []
        self.register_buffer("centre", torch.zeros(3))
        self.centre: Tensor

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(target))
        self.centre += output.detach().mean(0)
        return CE(output, target) * (1 + self.calls)


def with_globals(output: Tensor, target: Tensor) -> Tensor:
    global calls
    calls += 1
    history.append(float(calls))
    return CE(output, target)


def closure() -> tuple[Any, dict[str, int]]:
    state = {"calls": 0}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        state["calls"] += 1
        return CE(output, target)

    return loss, state


def policy(output: Tensor, target: Tensor) -> Tensor:
    """Its terms cancel out."""
    gain = torch.linspace(-1, 1, len(output))
    return -(output.log_softmax(1)[:, 0] * (target - 1)).mean() + 0 * gain.mean()


RIGHT: dict[str, Any] = {
    "a mean": CE,
    "a module": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a lambda": lambda o, y: CE(o, y) + 0.1 * o.square().mean(),
    "a sum that says so": nn.CrossEntropyLoss(reduction="sum"),
    "a MeanOver": pk.MeanOver(summed, count=len),
    "ignored labels": pk.MeanOver(
        lambda o, y: CE(o, y, ignore_index=0, reduction="sum"), lambda y: (y != 0).sum()
    ),
    "terms of both signs": policy,
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_warned_of(name: str) -> None:
    with no_word():
        pipeline = piped(RIGHT[name], m=3)
        pipeline.train(data(2, 7))  # microbatches of 3, 2 and 2 rows


@pytest.mark.parametrize("draws", ["torch", "python", "numpy"])
def test_a_random_loss_draws_as_if_it_was_not_asked(
    draws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if draws == "torch":
            return CE(F.dropout(output, 0.5), target)
        scale = random.random() if draws == "python" else float(np.random.rand())
        return CE(output, target) * (1 + scale)

    def trained() -> list[float]:
        pipeline = piped(loss)
        batches = data()
        random.seed(0)
        np.random.seed(0)
        losses = pipeline.train(batches).losses
        return [*losses, random.random(), float(np.random.rand()), torch.rand(()).item()]

    with no_word():
        asked = trained()
    monkeypatch.setattr("pipekit.engine.runs.questions.ask_loss", lambda first: None)
    assert asked == trained()


def test_a_loss_with_a_counter_is_called_as_often_as_in_the_plain_loop() -> None:
    loss, other, model = Counting(), Counting(), net()
    with no_word():
        pipeline = piped(loss)
        losses = pipeline.train(data()).losses
    want = plain_loop(model, sgd, other, data(), microbatches=2)
    equal(pipeline, losses, model, want)
    assert (loss.calls, loss.seen) == (6, [4] * 6)
    torch.testing.assert_close(loss.centre, other.centre)


def test_counters_in_closures_and_globals_stay() -> None:
    global calls
    calls, loss_and_state = 0, closure()
    history.clear()
    piped(loss_and_state[0]).train(data())
    piped(with_globals).train(data())
    assert loss_and_state[1]["calls"] == calls == len(history) == 6


def test_a_loss_that_cannot_be_copied_is_not_asked() -> None:
    lock = threading.Lock()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        with lock:
            return summed(output, target)

    model = net()
    with no_word():
        losses = piped(loss).train(data(1)).losses
    assert losses == pytest.approx(plain_loop(model, sgd, summed, data(1), microbatches=2))


def test_large_outputs_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipekit.engine.runs.questions.MOST_BYTES", 8 * 3 * 4 - 1)
    with no_word():
        piped(summed).train(data())


# Losses that read the model.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.aux = nn.Linear(8, 8), torch.zeros(())
        self.each: list[Tensor] = []
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("classes", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layer(x)
        self.seen += 1
        self.aux, self.each, self.size = h.pow(2).mean(), [h.mean()], float(h.detach().abs().max())
        return h


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.Linear(8, 3))


READS: dict[str, Callable[[Any], Any]] = {
    "an auxiliary loss": lambda net: lambda o, y: CE(o, y) + net[0].aux,
    "a sum over blocks": lambda net: lambda o, y: CE(o, y) + sum(b.aux for b in net[:1]),
    "a list": lambda net: lambda o, y: CE(o, y) + sum(net[0].each),
    "a number": lambda net: lambda o, y: CE(o, y) * net[0].size,
    "a buffer": lambda net: lambda o, y: CE(o, y) * net[0].seen,
    "a detached weight": lambda net: lambda o, y: CE(o / net[1].weight.detach().norm(), y),
    "data": lambda net: lambda o, y: CE(o / net[1].weight.data.norm(), y),
    "a module": lambda net: lambda o, y: CE(o + net[1](torch.zeros(8)).detach(), y),
    "a penalty": lambda net: lambda o, y: CE(o, y) + net[0].layer.weight.square().sum(),
}


@pytest.mark.parametrize("name", READS)
def test_a_loss_that_reads_what_training_changes_is_refused(name: str) -> None:
    model = blocks()
    before = copy.deepcopy(model.state_dict())
    pipeline = piped(READS[name](model), model=model)
    refusal = r"the loss reads .*no stage trains.*its last layer"
    with pytest.warns(match="forward changes"), pytest.raises(ValueError, match=refusal):
        pipeline.train(data())
    torch.testing.assert_close(dict(model.state_dict()), dict(before))


class Trainer:
    """Holds the model, and asks it about nothing that training changes."""

    def __init__(self, model: nn.Module, transport: str) -> None:
        self.model, self.steps = model, 0
        self.pipeline = piped(self.compute_loss, model=model, transport=transport)

    def compute_loss(self, output: Tensor, target: Tensor) -> Tensor:
        self.steps += 1
        assert self.model.training is not None
        return CE(output, target) * sqrt(1.0)  # a function written in C


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_trainers_method_trains(transport: str) -> None:
    model = net()
    plain, trainer = copy.deepcopy(model), Trainer(model, transport)
    with no_word():
        losses = trainer.pipeline.train(data()).losses
    equal(trainer.pipeline, losses, plain, plain_loop(plain, sgd, CE, data(), microbatches=2))
    assert trainer.steps == 6
    trainer.pipeline.close()


def test_what_stays_as_it_is_may_be_read() -> None:
    """Frozen weights, buffers that no forward sets, modules without weights."""
    model = nn.Sequential(Block(), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3))
    plain = copy.deepcopy(model)

    drop = nn.Dropout(0.0)

    def reads(net: Any) -> Any:
        return lambda o, y: CE(drop(o), y) * net[0].classes.sum() * net[1].weight.norm()

    pipeline = piped(reads(model), model=model)
    with pytest.warns(UserWarning, match="forward changes"):
        losses = pipeline.train(data(1)).losses
    assert losses == pytest.approx(plain_loop(plain, sgd, reads(plain), data(1), microbatches=2))
