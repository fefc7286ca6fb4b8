"""A mean over what counts is the unsplit batch's, wherever padding falls."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipekit import MeanOver, Pipeline, Schedule, schedules
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


@pytest.mark.parametrize(
    ("microbatches", "transport"),
    [(1, "threads"), (2, "threads"), (3, "threads"), (3, "distributed")],
)
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


@pytest.mark.parametrize("microbatches", [2, 3])
def test_a_mean_over_nothing_counts_nothing(microbatches: int) -> None:
    """A mean times its count, as for a loss that the model computes: NaN without labels."""

    def times(output: Tensor, labels: Tensor) -> Tensor:
        counts = labels != IGNORED
        losses = F.cross_entropy(output.transpose(1, 2), labels, reduction="none")
        return (losses * counts).sum() / counts.sum() * counts.sum()

    losses, pipeline = trained(schedules.flush(2, microbatches), loss=MeanOver(times, counted))
    assert_as_the_unsplit_batches(losses, pipeline)
    assert math.isfinite(pipeline.evaluate([(x, y) for x, y in DATA]))
