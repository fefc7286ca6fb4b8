"""Networks as people bring them, recorded and exported: equal to a plain loop to the bit."""

import copy
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, oracle, schedules
from pipekit.partition.recording.batch import call, with_shapes
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import tensors
from pipekit.partition.stages import stages
from pipekit.trees import tree_map
from tests.engine.examples import values
from tests.partition.networks import FAST, NETWORKS, build

OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
SHARING = {"gpt2", "t5", "bart", "twice", "tied"}
"""Weights with several uses, whose gradients have to be summed in the plain loop's order."""

FAST_EXPORTS = {"twice", "tied", "in place"}
REFUSED_BY_EXPORT = {"packed lstm", "transformer"}
"""Lengths and masks whose numbers Python reads within a block: recording leaves these whole."""
CASES = [
    (name, way)
    for name, way in product(NETWORKS, ("record", "export"))
    if (name, way) not in {(name, "export") for name in REFUSED_BY_EXPORT}
]


def cases() -> Iterator[Any]:
    """Yield (network, way, stages, microbatches); slow ones only for ``make models``."""
    for (name, way), cuts, m in product(CASES, (2, 3), (1, 2)):
        fast = name in FAST if way == "record" else name in FAST_EXPORTS
        marks = () if fast else pytest.mark.models
        if m == 1 or name in SHARING:
            yield pytest.param(name, way, cuts, m, marks=marks, id=f"{name}-{way}-{cuts}-{m}")


def loss(output: Any, target: Tensor) -> Tensor:
    """Weigh all floating-point outputs, each number with one of its own."""
    total = torch.zeros(())
    for tensor in tensors(output):
        if tensor.is_floating_point():
            weights = torch.linspace(-1, 1, tensor[0].numel()).view_as(tensor[0])
            total = total + ((tensor + target[0]) * weights).square().mean()
    return total


def part(k: int, m: int, tensor: Tensor) -> Tensor:
    return tensor.chunk(m)[k]


def plain_loop(model: nn.Module, batches: list[tuple[Any, Tensor]], m: int = 1) -> list[float]:
    """Add up the gradients of ``m`` equal parts of each batch."""
    optimizer = OPTIMIZER(model.parameters())
    losses = []
    for batch, target in batches:
        optimizer.zero_grad()
        total = 0.0
        for k in range(m):
            rows, numbers = tree_map(partial(part, k, m), (batch, target))
            value = loss(call(model, rows), numbers) / m
            value.backward()
            total += value.item()
        optimizer.step()
        losses.append(total)
    return losses


@pytest.fixture
def slow_attention() -> Iterator[None]:
    """Let ``nn.MultiheadAttention`` evaluate by its operators, as a graph of them does."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize(("name", "way", "cuts", "m"), cases())
@pytest.mark.usefixtures("slow_attention")
def test_a_network_as_people_bring_it_trains_as_a_plain_loop_does(
    name: str, way: str, cuts: int, m: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        model, batch = build(name, way)
        judge = copy.deepcopy(model)
        layers = stages(model, batch, way=way)
    assert layers.state_dict().keys() == model.state_dict().keys()

    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(2)]
    pipeline = Pipeline(layers, schedules.flush(cuts, m), optimizer=OPTIMIZER, loss=loss)
    run = pipeline.train(batches)

    assert run.losses == plain_loop(judge, batches, m)
    trained = pipeline.state_dict()
    assert list(trained) == list(layers.state_dict())
    for key, tensor in judge.state_dict().items():
        assert torch.equal(trained[key], tensor), key
    judge.load_state_dict(trained)


@pytest.mark.parametrize("name", sorted(REFUSED_BY_EXPORT))
def test_what_export_refuses_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, batch = build(name, "export")
    with pytest.raises(NotRecordable, match=r"torch.export refuses .*use way='record'"):
        stages(model, batch, way="export")
    assert capsys.readouterr() == ("", "")  # and not torch's graph of the model beside it


METHODS: dict[str, tuple[Any, int]] = {
    "flush": (schedules.flush(2, 2), 2),
    "2bw": (schedules.two_bw(2, 2), 2),
    "pipedream": (schedules.pipedream(2), 1),
}
FAST_WITH_VERSIONS = {
    ("gpt2", "record"),
    ("unet", "record"),
    ("tied", "record"),
    ("tied", "export"),
}


def with_versions() -> Iterator[Any]:
    """Yield (network, way in, method); most of them only for ``make models``."""
    for (name, way), method in product(CASES, METHODS):
        marks = () if (name, way) in FAST_WITH_VERSIONS else pytest.mark.models
        yield pytest.param(name, way, method, marks=marks, id=f"{name}-{way}-{method}")


@pytest.mark.parametrize(("name", "way", "method"), with_versions())
@pytest.mark.usefixtures("slow_attention")
def test_every_method_trains_its_stages_as_the_oracle_does(
    name: str, way: str, method: str
) -> None:
    schedule, microbatches = METHODS[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, batch = build(name, way)
        layers = stages(model, batch, way=way)
    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(4)]
    how: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01), "loss": loss}
    pipeline = Pipeline(layers, schedule, **values(**how))
    pipeline.train(batches)
    assert pipeline.balance is not None
    judge = oracle.train(
        layers, batches, method=method, balance=pipeline.balance, microbatches=microbatches, **how
    )
    trained = pipeline.state_dict()
    for key, weight in judge.weights[-1].items():
        assert torch.equal(trained[key.partition(".")[2]], weight)


@pytest.mark.parametrize("name", ["tied", pytest.param("gpt2", marks=pytest.mark.models)])
def test_an_exported_network_trains_on_batches_of_many_lengths(name: str) -> None:
    model, batch = build(name, "export")
    judge = copy.deepcopy(model)
    layers = stages(model, batch, way="export")
    assert layers.summary is not None
    assert "length" in layers.summary.verified[-1]
    batches = [
        (with_lengths(batch, length), torch.full((4,), 0.1 * length)) for length in (7, 3, 12, 7)
    ]
    pipeline = Pipeline(layers, schedules.flush(2, 1), optimizer=OPTIMIZER, loss=loss)
    assert pipeline.train(batches).losses == plain_loop(judge, batches)
    trained = pipeline.state_dict()
    assert all(torch.equal(trained[key], tensor) for key, tensor in judge.state_dict().items())


def with_lengths(batch: Any, length: int) -> Any:
    """Return a batch of texts, so long."""
    return with_shapes(batch, [(len(tensor), length) for tensor in tensors(batch)])
