"""Losses: means over what counts, those that read weights, and their scale."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit import LossScale, MeanOver, Pipeline, Schedule, schedules
from pipekit.losses.checks import nodes, require_loss, require_no_weights, weights_in_graph
from tests.engine.examples import by_equations, data, different, mlp, pipeline
from tests.people.plain import plain_loop

IGNORED = -100


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def counted(labels: Tensor) -> Tensor:
    return (labels != IGNORED).sum()


def mean(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


LOSS = MeanOver(summed, counted)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 7)).double()


def batches(*lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Sequences of these lengths in each batch, padded to 6 labels."""
    torch.manual_seed(1)
    made = []
    for each in lengths:
        labels = torch.randint(7, (len(each), 6))
        for row, length in enumerate(each):
            labels[row, length:] = IGNORED
        made.append((torch.randint(7, (len(each), 6)), labels))
    return made


DATA = batches([6, 1, 0, 0, 5, 2], [1, 1, 6, 6, 6, 3])


def trained(
    schedule: Schedule, transport: str = "threads", loss: Any = LOSS
) -> tuple[list[float], Pipeline]:
    pipeline = Pipeline(
        model(),
        schedule,
        balance=[2, 2],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        loss=loss,
        transport=transport,
    )
    return pipeline.train(DATA).losses, pipeline


def assert_as_the_unsplit_batches(losses: list[float], pipeline: Pipeline) -> None:
    judge = model()
    expected = plain_loop(judge, partial(torch.optim.SGD, lr=0.5), mean, DATA)
    assert losses == pytest.approx(expected, rel=1e-12)
    for name, tensor in pipeline.state_dict().items():
        torch.testing.assert_close(tensor, judge.state_dict()[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("microbatches", "transport"), [(1, "threads"), (3, "distributed")])
def test_losses_and_weights_are_the_unsplit_batches(microbatches: int, transport: str) -> None:
    assert_as_the_unsplit_batches(*trained(schedules.flush(2, microbatches), transport))


def test_a_mean_over_microbatches_is_another() -> None:
    """What this is for: a mean of means differs where padding is uneven, and may not even exist."""
    with pytest.warns(UserWarning, match=r"6 rows is .* together nan .*MeanOver"):
        losses, _ = trained(schedules.flush(2, 3), loss=mean)
    assert math.isnan(losses[0])  # two rows of a microbatch hold padding alone


def test_it_is_evaluated_over_all_that_counts() -> None:
    _, pipeline = trained(schedules.flush(2, 3))
    judge = copy.deepcopy(model())
    judge.load_state_dict(pipeline.state_dict())
    with torch.no_grad():
        total = sum(summed(judge(x), y).item() for x, y in DATA)
    expected = total / sum(int(counted(y)) for _, y in DATA)
    assert pipeline.evaluate(DATA) == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_padding_alone_is_refused() -> None:
    pipeline = Pipeline(
        model(),
        schedules.flush(2, 1),
        balance=[2, 2],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        loss=LOSS,
    )
    with pytest.raises(ValueError, match="nothing that the loss counts: leave it out"):
        pipeline.train(batches([0, 0]))


def test_a_mean_over_nothing_counts_nothing() -> None:
    """A mean times its count, as for a loss that the model computes: NaN without labels."""

    def times(output: Tensor, labels: Tensor) -> Tensor:
        counts = labels != IGNORED
        losses = F.cross_entropy(output.transpose(1, 2), labels, reduction="none")
        return (losses * counts).sum() / counts.sum() * counts.sum()

    losses, pipeline = trained(schedules.flush(2, 3), loss=MeanOver(times, counted))
    assert_as_the_unsplit_batches(losses, pipeline)
    assert math.isfinite(pipeline.evaluate([(x, y) for x, y in DATA]))


class Scaled(nn.Module):
    """A loss with a weight of its own, or a tensor that is none to PyTorch."""

    def __init__(self, kind: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = kind(torch.ones(3, requires_grad=True))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output * self.scale, target)


@pytest.mark.parametrize(
    ("kind", "transport", "recompute"),
    [
        (nn.Parameter, "threads", "never"),
        (lambda tensor: tensor, "threads", "always"),
        (lambda tensor: tensor, "distributed", "never"),
    ],
)
def test_a_loss_with_weights_is_refused(kind: Any, transport: str, recompute: str) -> None:
    """Its remedy is in the sentence, and the pipeline's weights are as they were."""
    model = mlp(6, 6, 3)
    how: dict[str, Any] = {"transport": transport, "recompute": recompute}
    pipe = pipeline(model, "flush", [1, 1], loss=Scaled(kind), **how)
    with pytest.raises(ValueError, match=r"no stage trains.*into the model.*requires_grad_\(False"):
        pipe.train(data(1))
    if recompute == "never":
        assert different(pipe.state_dict(), model.state_dict()) == []


def test_a_loss_with_frozen_weights_is_the_plain_loops() -> None:
    """As a network that compares what it makes of output and target has them."""
    eye = nn.Linear(3, 4).requires_grad_(False)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(eye(output), eye(target))

    truth = by_equations(mlp(6, 6, 3), data(2), "flush", [1, 1], loss=loss)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], loss=loss)
    assert pipe.train(data(2)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


def test_weights_behind_the_outputs_are_the_models() -> None:
    layer = nn.Linear(2, 2)
    output = layer(torch.ones(1, 2))
    require_no_weights(output.sum(), [output])
    with pytest.raises(ValueError, match=r"shape \[2\]"):
        require_no_weights((output + nn.Parameter(torch.ones(2))).sum(), [output])


class WithCentres(nn.Module):
    """Returns a weight as it is, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.centres


def test_a_weight_that_the_model_returns_is_trained() -> None:
    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.mse_loss(output[0] - output[1], target)

    model = nn.Sequential(*mlp(6, 6, 3), WithCentres())
    truth = by_equations(model, data(2), "flush", [1, 2], m=1, loss=loss)
    pipe = pipeline(model, "flush", [1, 2], m=1, loss=loss)
    assert pipe.train(data(2)).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


def test_a_loss_is_one_number_that_is_trained() -> None:
    with pytest.raises(TypeError, match=r"one number .* not Tensor of shape \[2\]"):
        require_loss(torch.ones(2, requires_grad=True) * 2)
    with pytest.raises(TypeError, match=r"one number .* not tuple: .*metric="):
        require_loss((torch.ones(()), {"accuracy": 0.5}))
    with pytest.raises(ValueError, match=r"\.item\(\)"):
        require_loss(torch.ones(1))
    with torch.no_grad():
        require_loss(torch.ones(1))


def test_dynamic_is_pytorchs_rule() -> None:
    theirs = torch.amp.GradScaler("cpu")
    assert LossScale.of("dynamic") == LossScale(
        theirs.get_scale(),
        theirs.get_growth_factor(),
        theirs.get_backoff_factor(),
        theirs.get_growth_interval(),
    )


def test_a_number_stays_as_it_is_and_a_rule_or_none_is_itself() -> None:
    assert LossScale.of(1024) == LossScale(1024.0, growth=1.0, backoff=1.0)
    rule = LossScale(8.0, interval=3)
    assert LossScale.of(rule) is rule
    assert LossScale.of(None) is None


@pytest.mark.parametrize("value", ["static", 0, -1.0, float("inf"), float("nan"), torch.ones(())])
def test_what_is_no_scale(value: Any) -> None:
    with pytest.raises(ValueError, match=r"loss[_ ]scale"):
        LossScale.of(value)


@pytest.mark.parametrize(
    "numbers", [{"growth": 0.5}, {"backoff": 0.0}, {"backoff": 2.0}, {"interval": 0}]
)
def test_what_is_no_rule(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LossScale"):
        LossScale(**numbers)


def test_every_node_comes_once() -> None:
    x = torch.ones(2, requires_grad=True)
    twice = x * 2
    found = [type(node).__name__ for node in nodes([twice + twice, twice])]
    assert sorted(found) == ["AccumulateGrad", "AddBackward0", "MulBackward0"]


def test_a_target_that_requires_a_gradient_is_no_weight() -> None:
    batches = [(x, y.requires_grad_()) for x, y in data(2)]
    want = pipeline(mlp(6, 6, 3), "flush", [1, 1], loss=F.mse_loss).train(data(2)).losses
    assert pipeline(mlp(6, 6, 3), "flush", [1, 1], loss=F.mse_loss).train(batches).losses == want


def test_weights_are_leaves_that_get_a_gradient() -> None:
    trained, frozen, detached = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.requires_grad_(False)
    x = torch.ones(1, 2, requires_grad=True)
    y = frozen(trained(x)) + detached(x).detach()
    assert set(weights_in_graph([y])) == {x, *trained.parameters()}
    assert list(weights_in_graph([y.detach()])) == []
