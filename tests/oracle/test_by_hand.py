"""The judge judged: one weight a stage, beside the recurrences by hand, in plain Python floats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from pipekit import oracle
from tests.oracle.examples import PIPEDREAM, SEQUENTIAL


class Scale(nn.Module):
    """Multiply by one weight, in float64."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))

    def forward(self, value: Tensor) -> Tensor:
        return self.weight * value


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean() / 2


def product(values: list[float]) -> float:
    result = 1.0
    for value in values:
        result *= value
    return result


def hand_gradient(
    forward: list[float], backward: list[float], batch: list[tuple[float, float]]
) -> list[float]:
    """The gradient of the mean of (w_1 ... w_n x - y)^2 / 2, by the chain rule.

    Stage s multiplies its saved input, made by the ``forward`` weights before it, with what comes
    back through the ``backward`` weights after it.
    """
    gradient = [0.0] * len(forward)
    for x, y in batch:
        error = product(forward) * x - y
        for s in range(len(forward)):
            gradient[s] += error * product(forward[:s]) * x * product(backward[s + 1 :])
    return [g / len(batch) for g in gradient]


def hand_train(
    start: list[float],
    batches: list[list[tuple[float, float]]],
    delays: list[int],
    lr: float,
    *,
    stashing: bool = True,
    momentum: float = 0.0,
) -> list[list[float]]:
    """w(t+1) = w(t) - lr * v, v = momentum * v + gradient at w_s(t - delay_s)."""
    n = len(start)
    past = [start]
    velocity = [0.0] * n
    for t, batch in enumerate(batches):
        read = [past[max(t - delays[s], 0)][s] for s in range(n)]
        gradient = hand_gradient(read, read if stashing else past[t], batch)
        velocity = [momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
        past.append([w - lr * v for w, v in zip(past[t], velocity, strict=True)])
    return past


def hand_delays(method: str, n: int) -> list[int]:
    """Updates between the weights that stage s = 1..n reads and the newest."""
    if method in ("pipedream", "pipedream_no_stashing"):
        return [n - s for s in range(1, n + 1)]
    return [{"pipedream_vertical_sync": n - 1, "2bw": 1}.get(method, 0)] * n


numbers = st.floats(-1.5, 1.5).map(lambda x: round(x, 3))


@given(data=st.data(), method=st.sampled_from([*SEQUENTIAL, *PIPEDREAM, "2bw"]))
def test_each_method_follows_its_equation(data: st.DataObject, method: str) -> None:
    n = data.draw(st.integers(1, 5), "stages")
    m = 1 if method in PIPEDREAM else data.draw(st.integers(1, 4), "microbatches")
    momentum = data.draw(st.sampled_from([0.0, 0.9]), "momentum")
    start = data.draw(st.lists(numbers, min_size=n, max_size=n), "weights")
    rows = st.lists(st.tuples(numbers, numbers), min_size=m, max_size=m + 3)
    batches = data.draw(st.lists(rows, min_size=1, max_size=8), "batches")

    run = oracle.train(
        nn.Sequential(*map(Scale, start)),
        [tuple(torch.tensor(batch, dtype=torch.float64).T) for batch in batches],
        method=method,
        balance=[1] * n,
        microbatches=m,
        optimizer=lambda p: SGD(p, lr=0.05, momentum=momentum),
        loss=half_square,
    )

    stashing = method != "pipedream_no_stashing"
    delays = hand_delays(method, n)
    by_hand = hand_train(start, batches, delays, 0.05, stashing=stashing, momentum=momentum)
    assert len(run.weights) == len(by_hand) == len(batches) + 1
    for weights, expected in zip(run.weights, by_hand, strict=True):
        got = [w.item() for w in weights.values()]
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_pipedream_in_numbers() -> None:
    """Two stages, f = (w1 w2 - 1)^2 / 2, lr 1/2, from (2, 1): by hand.

    g(w1, w2) = (e w2, e w1) with e = w1 w2 - 1.
    t=0: reads (2, 1):     e = 1,   g = (1, 2)       -> (3/2, 0)
    t=1: reads (2, 0):     e = -1,  g = (0, -2)      -> (3/2, 1)      stage 1 is one behind
    t=2: reads (3/2, 1):   e = 1/2, g = (1/2, 3/4)   -> (5/4, 5/8)
    """
    run = oracle.train(
        nn.Sequential(Scale(2.0), Scale(1.0)),
        [(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))] * 3,
        method="pipedream",
        balance=[1, 1],
        optimizer=lambda p: SGD(p, lr=0.5),
        loss=half_square,
    )
    path = [tuple(w.item() for w in weights.values()) for weights in run.weights]
    assert path == [(2, 1), (1.5, 0), (1.5, 1), (1.25, 0.625)]
    assert run.losses == [0.5, 0.5, 0.125]
    assert [tuple(g.item() for g in each.values()) for each in run.gradients] == [
        (1, 2),
        (0, -2),
        (0.5, 0.75),
    ]
