"""A table with backwards in two parts is trained: as with whole backwards, to the bit.

The judges are the same table with whole backwards, and the oracle, which knows no tables.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pipekit import (
    Pipeline,
    Schedule,
    Watch,
    emulate,
    measure_memory,
    models,
    oracle,
    schedules,
    simulate,
)
from pipekit.profiling import Profile
from pipekit.schedules import Op
from tests.emulation.own_time import own_time
from tests.engine.examples import Batches, Trained, trained, unlike, values
from tests.engine.parametrized import first_over_processes
from tests.schedules.examples import SPLIT

WHOLE = Schedule(
    tuple(
        tuple(
            task._replace(op=Op.BACKWARD) if task.op is Op.BACKWARD_INPUT else task
            for task in tasks
            if task.op is not Op.BACKWARD_WEIGHT
        )
        for tasks in SPLIT.workers
    )
)


class Network(NamedTuple):
    """What is trained, in three stages."""

    model: Callable[[], nn.Sequential]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Any


def convnet() -> nn.Sequential:
    first, *others, last = models.convnet(4)
    layers = nn.BatchNorm2d(4), *others[:3], nn.BatchNorm2d(8), *others[3:], nn.Dropout(0.2)
    return nn.Sequential(first, *layers, last)


def image_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 28, 28), torch.randint(10, (8,))


def token_batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(11, (8, 4))
    return tokens, tokens.roll(-1, dims=1)


def unet_batch() -> tuple[Tensor, Tensor]:
    image = torch.randn(8, 3, 64, 64)
    return image, image.mean(1, keepdim=True)


NETWORKS = {
    "mlp": Network(
        partial(models.mlp, width=6, depth=4),
        lambda: (torch.randn(8, 6), torch.randn(8, 6)),
        nn.MSELoss(),
    ),
    "convnet with batch norm": Network(convnet, image_batch, nn.CrossEntropyLoss()),
    "gpt": Network(
        partial(models.gpt, 2, 8, 2, vocabulary=11, sequence=4), token_batch, models.token_loss
    ),
    "tied gpt": Network(
        partial(models.gpt, 2, 8, 2, vocabulary=11, sequence=4, tied=True),
        token_batch,
        models.token_loss,
    ),
    "u-net with skips": Network(partial(models.unet, 1, 4), unet_batch, nn.MSELoss()),
}


def made(name: str) -> tuple[nn.Sequential, Batches, dict[str, Any]]:
    """A network, two batches, and how it is trained."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model, batches = network.model(), [network.batch() for _ in range(2)]
    third = len(model) // 3
    return (
        model,
        batches,
        {
            "balance": [third, third, len(model) - 2 * third],
            "optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            "loss": network.loss,
        },
    )


def outcome(name: str, schedule: Schedule, **options: Any) -> Trained:
    model, batches, how = made(name)
    return trained(Pipeline(model, schedule, **values(**how, **options)), batches)


@first_over_processes("case", [*((name, "never") for name in NETWORKS), (min(NETWORKS), "always")])
def test_the_weights_are_those_of_the_equation(case: tuple[str, str], transport: str) -> None:
    name, recompute = case
    model, batches, how = made(name)
    truth = oracle.train(model, batches, method="sequential", microbatches=4, **how)
    assert unlike(outcome(name, SPLIT, transport=transport, recompute=recompute), truth) == []


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_stages_on_several_workers(transport: str) -> None:
    """The sums of an update begin in the last part for the weights."""
    twice = partial(schedules.replicate, width=2)
    found = outcome("mlp", twice(SPLIT), transport=transport)
    assert unlike(found, outcome("mlp", twice(WHOLE))) == []


def test_the_trace_has_both_parts_and_the_memory_is_followed() -> None:
    model, batches, how = made("mlp")
    run = Pipeline(model, SPLIT, **values(**how)).train(batches, watch=Watch(memory=True))
    counts = run.trace.frame["op"].value_counts().to_dict()
    assert counts == {"FORWARD": 24, "BACKWARD_INPUT": 24, "BACKWARD_WEIGHT": 24, "UPDATE": 6}
    frame = measure_memory(run).frame
    assert (frame.groupby("worker")["activations"].last() == 0).all()
    assert run.peak_in_flight == schedules.check(SPLIT).peak_in_flight


def test_it_is_emulated_as_it_is_simulated() -> None:
    profile = Profile.uniform(3, 1e-3, 2e-3, output_bytes=40)
    with own_time():
        run, simulated = emulate(SPLIT, profile), simulate(SPLIT, profile)
    columns = ["worker", "stage", "op", "microbatch", "version", "bytes"]
    assert (
        run.trace.frame[columns].to_numpy().tolist() == simulated.frame[columns].to_numpy().tolist()
    )
    assert run.trace.makespan_s == pytest.approx(simulated.makespan_s)
