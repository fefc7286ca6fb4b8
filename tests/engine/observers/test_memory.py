"""Bytes measured on the running engine: against what they must be, and against the simulation."""

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from experiments.torchgpipe.cells import as_drawn
from pipekit import (
    Pipeline,
    PipelinedModule,
    Plan,
    Profile,
    Watch,
    emulate,
    measure_memory,
    models,
    schedules,
    simulate,
)
from pipekit.clusters.papers import V100
from pipekit.engine.config import Loss
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.plans import Recompute
from pipekit.schedules import Schedule
from pipekit.traces.memory import Memory
from tests.engine.examples import pipeline

ROWS, M, BATCHES = 8, 4, 3
METHODS: dict[str, Schedule] = {
    "gpipe": schedules.gpipe(2, M),
    "flush": schedules.flush(2, M),
    "pipedream": schedules.pipedream(2),
    "2bw": schedules.two_bw(2, M),
}
OPTIMIZERS: dict[int, OptimizerFactory] = {
    0: partial(torch.optim.SGD, lr=0.01),
    1: partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    2: torch.optim.Adam,
}


class Example(NamedTuple):
    """A network cut in two, with a microbatch of ``rows`` rows for it."""

    model: nn.Sequential
    balance: list[int]
    rows: int
    inputs: Tensor
    targets: Tensor
    loss: Loss

    def batch(self, microbatches: int) -> tuple[Tensor, Tensor]:
        return torch.cat([self.inputs] * microbatches), torch.cat([self.targets] * microbatches)


@cache
def example(name: str) -> Example:
    if name == "convnet":
        images, digits = torch.rand(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
        return Example(models.convnet(), [3, 11], ROWS, images, digits, nn.CrossEntropyLoss())
    if name == "gpt":
        tokens = torch.randint(64, (2, 32))
        network = models.gpt(4, 32, 2, vocabulary=64, sequence=32)
        return Example(network, [3, 4], 2, tokens, tokens, models.token_loss)
    images, masks = torch.rand(1, 3, 64, 64), torch.rand(1, 1, 64, 64)
    return Example(models.unet(1, 4), [9, 13], 1, images, masks, nn.BCEWithLogitsLoss())


@cache
def profile(name: str) -> Profile:
    return Profile.analytic(example(name).model, example(name).inputs, V100)


def predicted(name: str, schedule: Schedule, recompute: Recompute, states: int) -> Memory:
    of = example(name)
    plan = Plan.by_hand(of.balance, rows=of.rows, recompute=recompute)
    memory = simulate(schedule, profile(name), plan, optimizer_states=states).memory
    assert memory is not None
    return memory


def agreements() -> Iterator[tuple[str, str, Recompute, int]]:
    """Yield every method, with each network, optimizer and kind of recomputation in turn."""
    modes: list[Recompute] = ["never", "always", "except_last"]
    for number, method in enumerate(METHODS):
        turn, name = number // 3, ("convnet", "gpt", "unet")[number % 3]
        yield name, method, modes[(number + turn) % 3], (2 * number + turn) % 3


@pytest.mark.parametrize(("name", "method", "recompute", "states"), list(agreements()))
def test_the_simulation_predicts_the_peak_within_5_percent(
    name: str, method: str, recompute: Recompute, states: int
) -> None:
    of = example(name)
    pipe = pipeline(
        of.model,
        METHODS[method],
        of.balance,
        optimizer=OPTIMIZERS[states],
        loss=of.loss,
        recompute=recompute,
    )
    batch = of.batch(1 if method == "pipedream" else M)
    found = measure_memory(pipe.train([batch] * BATCHES, watch=Watch(memory=True)))
    assert found.label == "measured"
    ours = predicted(name, METHODS[method].take(BATCHES), recompute, states)
    assert ours.peak_bytes == pytest.approx(found.peak_bytes, rel=0.05)


def test_two_pipelines_hold_a_second_sum_of_gradients_as_predicted() -> None:
    """That of the batch before waits for its update while the next one grows."""
    of = example("gpt")
    schedule = schedules.replicate(schedules.two_bw(2, M).take(BATCHES), 2)
    pipe = Pipeline(of.model, schedule, balance=of.balance, optimizer=OPTIMIZERS[1], loss=of.loss)
    found = measure_memory(pipe.train([of.batch(2 * M)] * BATCHES, watch=Watch(memory=True)))
    plan = Plan.by_hand(of.balance, rows=of.rows, replicas=[2, 2])
    ours = simulate(schedule, profile("gpt"), plan, optimizer_states=1).memory
    assert ours is not None
    assert ours.peak_bytes == pytest.approx(found.peak_bytes, rel=0.01)
    first, last = (
        2 * sum(p.nbytes for p in layers.parameters()) for layers in (of.model[:3], of.model[3:])
    )
    for memory in (found, ours):
        assert memory.frame.groupby("worker")["gradients"].max().tolist() == [
            first,
            first,
            last,
            last,
        ]


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
def test_a_pipelined_module_holds_what_gpipe_does(recompute: Recompute) -> None:
    """With the backwards in reversed order, as GPipe draws them and autograd runs them."""
    of = example("gpt")
    module = PipelinedModule(
        of.model, of.balance, chunks=M, checkpoint=recompute, watch=Watch(trace=False, memory=True)
    )
    inputs, targets = of.batch(M)
    of.loss(module(inputs), targets).backward()
    found = measure_memory(module)
    ours = predicted("gpt", as_drawn(2, M), recompute, 0)
    assert ours.peak_bytes == pytest.approx(found.peak_bytes, rel=0.05)
    assert found.frame.groupby("worker")["activations"].last().eq(0).all()


def test_every_part_is_what_it_must_be() -> None:
    """One stage of a Linear layer, 4 x 4 without bias, rows of 4 numbers: all bytes by hand."""
    pipe = pipeline(
        nn.Sequential(nn.Linear(4, 4, bias=False)), schedules.gpipe(1, 2), optimizer=OPTIMIZERS[1]
    )
    data = [(torch.ones(2 * ROWS, 4), torch.ones(2 * ROWS, 4))] * 2
    memory = measure_memory(pipe.train(data, watch=Watch(memory=True)))
    weight, rows, loss = 4 * 4 * 4, ROWS * 4 * 4, 4
    peak = memory.frame[["weights", "gradients", "optimizer", "recompute"]].max().tolist()
    assert peak == [weight, weight, weight, 0]
    # Of each microbatch the layer's input, its output and the target, which the loss needs, and
    # the loss.
    assert memory.frame["activations"].max() == 2 * (3 * rows + loss)


def test_all_is_given_back() -> None:
    pipe = pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        schedules.flush(2, 2),
        [1, 1],
        optimizer=OPTIMIZERS[0],
    )
    data = [(torch.ones(4, 4), torch.ones(4, 4))]
    memory = measure_memory(pipe.train(data, watch=Watch(memory=True)))
    assert memory.frame.groupby("worker")[["gradients", "activations"]].last().eq(0).all(axis=None)


def test_a_run_whose_memory_was_not_followed_says_how_to_follow_it() -> None:
    run = emulate(schedules.gpipe(1, 1).take(1), Profile.uniform(1, 0.001, 0.001))
    with pytest.raises(ValueError, match=r"Watch\(memory=True\) to train\(\).*: simulate it"):
        measure_memory(run)
