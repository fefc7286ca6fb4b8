"""The program that trains hears of each batch, in its own thread."""

import math
import threading
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipekit import Pipeline, Watch, measure_memory, oracle, schedules
from pipekit.engine import BatchDone
from pipekit.engine.observers.reporter import LossBar, LossKnown, UpdateMade
from pipekit.schedules.lowering.boundaries import PossibleStops
from tests.engine.examples import by_equations, data, mixed, mlp, pipeline
from tests.engine.parametrized import first_over_processes


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_every_batch_is_told_of_once_in_order_here(transport: str) -> None:
    heard: list[BatchDone] = []
    threads = set()

    def listen(done: BatchDone) -> None:
        heard.append(done)
        threads.add(threading.current_thread())

    pipe = pipeline(mlp(6, 6, 3), "2bw", [1, 1], m=4, transport=transport)
    run = pipe.train(data(5, rows=8), on_batch=listen)
    assert [done.number for done in heard] == [0, 1, 2, 3, 4]
    assert [done.loss for done in heard] == run.losses
    assert [done.seconds for done in heard] == sorted(done.seconds for done in heard)
    told = accumulate(done.rows for done in heard)
    assert [done.rows_per_s for done in heard] == [
        rows / done.seconds for rows, done in zip(told, heard, strict=True)
    ]
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_what_the_last_worker_holds_is_told_if_it_is_counted(transport: str) -> None:
    heard: list[BatchDone] = []
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport=transport)
    run = pipe.train(data(2), watch=Watch(memory=True), on_batch=lambda done: heard.append(done))
    rows = measure_memory(run).frame
    last = rows[rows["worker"] == 1].iloc[-1]  # nothing comes after its last update
    kinds = ["weights", "gradients", "optimizer", "activations", "recompute"]
    assert heard[-1].held_bytes == last[kinds].sum() >= 4 * (18 + 3)
    assert heard_of(pipe, data(1))[0].held_bytes is None


def heard_of(pipe: Pipeline, batches: Any, **options: Any) -> list[BatchDone]:
    heard: list[BatchDone] = []
    pipe.train(batches, on_batch=lambda done: heard.append(done), **options)
    return heard


def norms(truth: oracle.OracleRun) -> list[float]:
    """The norm of each update's gradient."""
    return [
        torch.linalg.vector_norm(torch.cat([g.flatten() for g in update.values()])).item()
        for update in truth.gradients
    ]


@first_over_processes("method", ["2bw", "flush"])
def test_each_batch_comes_with_its_own_updates_rate_and_norm(method: str, transport: str) -> None:
    options = {"clip_norm": 0.1 if method == "2bw" else math.inf}
    how: dict[str, Any] = {
        "lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    }
    pipe = pipeline(mixed(), method, [2, 3, 3], transport=transport, **how, **options)
    heard = heard_of(pipe, data(5))
    truth = by_equations(mixed(), data(5), method, [2, 3, 3], clip_norm=options["clip_norm"], **how)
    assert [done.loss for done in heard] == truth.losses
    assert [done.learning_rates for done in heard] == [(0.05,)] * 2 + [(0.025,)] * 2 + [(0.0125,)]
    assert [done.gradient_norm for done in heard] == pytest.approx(norms(truth))


def test_a_skipped_update_has_no_norm() -> None:
    batches = data(3)
    batches[1] = batches[1][0] * math.inf, batches[1][1]
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], clip_norm=1.0, loss_scale=2.0)
    heard = heard_of(pipe, batches)
    assert [done.gradient_norm is None for done in heard] == [False, True, False]


@pytest.mark.filterwarnings("ignore:the optimizer has a step")  # each stage has a first parameter
def test_batches_that_share_an_update_are_told_of_after_it() -> None:
    """Stages on two workers; the fifth minibatch has the last update for itself."""
    pipe = pipeline(
        mlp(6, 6, 3),
        schedules.pipedream([2, 2]),
        [1, 1],
        optimizer=lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.2}], 0.1),
        clip_norm=math.inf,
    )
    heard = sorted(heard_of(pipe, data(5)))
    assert [done.number for done in heard] == [0, 1, 2, 3, 4]
    assert {done.learning_rates for done in heard} == {(0.1, 0.2)}
    one, two, three, four, _ = [done.gradient_norm for done in heard]
    assert (one, three) == (two, four) != (three, one)


def test_a_loss_is_summed_in_the_order_of_microbatches_whichever_comes_first() -> None:
    heard: list[BatchDone] = []
    source: Any = SimpleNamespace(
        rows=[3], each_batch=lambda: iter([range(3)]), possible_stops=PossibleStops()
    )
    bar = LossBar(source, heard.append, 0, False)
    for microbatch, loss in ((2, 0.3), (1, 0.2), (0, 0.1)):
        bar.add(LossKnown(microbatch, loss))
    bar.add(UpdateMade(range(1), (), None, None))
    assert [done.loss for done in heard] == [0.1 + 0.2 + 0.3]
