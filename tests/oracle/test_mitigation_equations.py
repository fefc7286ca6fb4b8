"""The judge judged: what the oracle does about stale weights, against recurrences by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

from pipekit import oracle
from pipekit.oracle import mitigation_equations as equations
from tests.oracle.test_by_hand import Scale, half_square, hand_gradient, numbers

Rows = list[tuple[float, float]]
LR, MU, BETAS, EPS = 0.05, 0.8, (0.9, 0.99), 1e-8


class Momentum:
    """SGD with momentum of one number; ``step`` is what it expects to do next."""

    def __init__(self) -> None:
        self.velocity = 0.0

    def update(self, gradient: float) -> float:
        self.velocity = MU * self.velocity + gradient
        return self.velocity

    step = property(lambda self: self.velocity)


class Moments:
    """Adam of one number."""

    def __init__(self) -> None:
        self.mean, self.square, self.count = 0.0, 0.0, 0

    def update(self, gradient: float) -> float:
        self.count += 1
        self.mean = BETAS[0] * self.mean + (1 - BETAS[0]) * gradient
        self.square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient**2
        return self.step

    @property
    def step(self) -> float:
        if not self.count:
            return 0.0
        mean = self.mean / (1 - BETAS[0] ** self.count)
        return mean / (math.sqrt(self.square / (1 - BETAS[1] ** self.count)) + EPS)


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "sgd": (Momentum, lambda p: SGD(p, lr=LR, momentum=MU)),
    "adam": (Moments, lambda p: Adam(p, lr=LR, betas=BETAS, eps=EPS)),
}


def by_hand(
    start: list[float], batches: list[Rows], kind: str, name: str, k_anneal: int
) -> list[list[float]]:
    """PipeDream's weights over time, with running values where the oracle looks at all of them."""
    n = len(start)
    state = [OPTIMIZERS[kind][0]() for _ in start]
    past, steps = [start], [[0.0] * n]  # W(t), and the step that was expected after t updates
    delta, square, last = [0.0] * n, [0.0] * n, [0.0] * n
    for t, batch in enumerate(batches):
        forward, backward, rate = [], [], []
        for s in range(n):
            tau = n - 1 - s
            v = max(t - tau, 0)
            now, read = past[t][s], past[v][s]
            ahead_forward = {"spectrain": s // 2 + tau, "pipeoptim": tau}.get(name, 0)
            ahead_backward = s // 2 if name == "spectrain" else 0
            forward.append(read - ahead_forward * LR * steps[v][s])
            if name in ("gap", "feedback"):  # with stashing
                backward.append(read)
            elif name == "pipemare":
                backward.append(now - tau * delta[s])
            else:
                backward.append(now - ahead_backward * LR * steps[t][s])
            p = 1 - min(t / k_anneal, 1)
            rate.append(max(tau, 1) ** -p if name == "pipemare" else 1.0)
        gradient = hand_gradient(forward, backward, batch)
        if name == "gap" and t:
            for s in range(n):
                usual = math.sqrt(square[s] / (1 - 0.9**t)) + EPS
                gradient[s] /= 1 + abs(past[t][s] - past[max(t - n + 1 + s, 0)][s]) / usual
        step = [LR * rate[s] * state[s].update(gradient[s]) for s in range(n)]
        made = [past[t][s] - step[s] for s in range(n)]
        if name == "feedback" and t:
            made = [made[s] - 0.5 * (step[s] - last[s]) for s in range(n)]
        last = step
        for s in range(n):
            moved = made[s] - past[t][s]
            if n - 1 - s:
                gamma = 0.3 ** (1 / (n - 1 - s))
                delta[s] = gamma * delta[s] + (1 - gamma) * moved
            square[s] = 0.9 * square[s] + (1 - 0.9) * moved**2
        past.append(made)
        steps.append([each.step for each in state])
    return past


MITIGATIONS: dict[str, tuple[str, Any]] = {
    "spectrain": ("pipedream_no_stashing", equations.SpecTrain()),
    "pipeoptim": ("pipedream_no_stashing", equations.PipeOptim()),
    "pipemare": ("pipedream_no_stashing", equations.PipeMare(anneal=3, decay=0.3)),
    "gap": ("pipedream", equations.GapAware(decay=0.9)),
    "feedback": ("pipedream", equations.Feedback(0.5)),
}


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", MITIGATIONS)
def test_each_follows_its_recurrence(name: str, kind: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5), "stages")
    weights = st.floats(0.3, 1.5).map(lambda x: round(x, 3))  # Adam's sign is not at stake
    start = data.draw(st.lists(weights, min_size=n, max_size=n), "weights")
    rows = st.lists(st.tuples(weights, numbers), min_size=1, max_size=3)
    batches = data.draw(st.lists(rows, min_size=1, max_size=8), "batches")
    method, rule = MITIGATIONS[name]
    run = oracle.train(
        nn.Sequential(*map(Scale, start)),
        [tuple(torch.tensor(batch, dtype=torch.float64).T) for batch in batches],
        method=method,
        balance=[1] * n,
        optimizer=OPTIMIZERS[kind][1],
        loss=half_square,
        mitigation=rule,
    )
    for got, expected in zip(
        run.weights, by_hand(start, batches, kind, name, k_anneal=3), strict=True
    ):
        assert [w.item() for w in got.values()] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_nothing_is_other_with_one_stage() -> None:
    """What looks as far ahead as the pipeline is long has nothing to look at."""
    batches = [(torch.randn(4, 1, dtype=torch.float64),) * 2 for _ in range(4)]

    def train(mitigation: equations.Equations | None) -> list[float]:
        run = oracle.train(
            nn.Sequential(Scale(0.5)),
            batches,
            method="pipedream_no_stashing",
            balance=[1],
            optimizer=lambda p: SGD(p, lr=LR, momentum=MU),
            loss=half_square,
            mitigation=mitigation,
        )
        return [w.item() for weights in run.weights for w in weights.values()]

    for rule in (
        equations.SpecTrain(),
        equations.PipeOptim(),
        equations.PipeMare(anneal=2),
    ):
        assert train(rule) == train(None)


@given(data=st.data())
def test_paci_reads_what_is_there(data: st.DataObject) -> None:
    """Of 1F1B: when microbatch j comes forward on stage s, j - (n - s) + 1 have come back."""
    n, m = data.draw(st.integers(1, 4), "stages"), data.draw(st.integers(1, 4), "microbatches")
    start = data.draw(st.lists(numbers, min_size=n, max_size=n), "weights")
    rows = st.lists(st.tuples(numbers, numbers), min_size=m, max_size=m)
    batches = data.draw(st.lists(rows, min_size=1, max_size=5), "batches")
    run = oracle.train(
        nn.Sequential(*map(Scale, start)),
        [tuple(torch.tensor(batch, dtype=torch.float64).T) for batch in batches],
        method="paci",
        balance=[1] * n,
        microbatches=m,
        optimizer=lambda p: SGD(p, lr=LR),
        loss=half_square,
    )
    past = [start]
    for t, batch in enumerate(batches):
        total = [0.0] * n
        for j, row in enumerate(batch, start=t * m):
            done = [max(j - (n - s) + 1, 0) // m for s in range(n)]
            forward = [past[done[s]][s] for s in range(n)]
            own = hand_gradient(forward, past[t], [row])
            total = [a + b / m for a, b in zip(total, own, strict=True)]
        past.append([w - LR * g for w, g in zip(past[t], total, strict=True)])
    for got, expected in zip(run.weights, past, strict=True):
        assert [w.item() for w in got.values()] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("flush_after", "read"), [((), [0, 0, 1, 2]), ((0, 1), [0, 1, 2, 2]), ((1,), [0, 0, 2, 2])]
)
def test_2bw_reads_the_newest_after_a_flush(flush_after: tuple[int, ...], read: list[int]) -> None:
    batches = [(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))] * 4
    run = oracle.train(
        nn.Sequential(Scale(2.0)),
        batches,
        method="2bw",
        balance=[1],
        optimizer=lambda p: SGD(p, lr=0.25),
        loss=half_square,
        flush_after=flush_after,
    )
    weights = [w.item() for each in run.weights for w in each.values()]
    assert run.losses == [weights[v] ** 2 / 2 for v in read]


def test_2bw_may_read_one_update_ahead() -> None:
    """Gradients of a batch are then taken where momentum alone would have brought W(t-1)."""
    x = torch.ones(1, dtype=torch.float64)
    run = oracle.train(
        nn.Sequential(Scale(2.0)),
        [(x, 0 * x)] * 4,
        method="2bw",
        balance=[1],
        optimizer=lambda p: SGD(p, lr=0.25, momentum=0.5),
        loss=half_square,
        mitigation=equations.Ahead(1),
    )
    past, velocity, steps = [2.0], 0.0, [0.0]
    for t in range(4):
        read = past[max(t - 1, 0)] - 0.25 * steps[max(t - 1, 0)]
        velocity = 0.5 * velocity + read
        steps.append(velocity)
        past.append(past[t] - 0.25 * velocity)
    assert [w.item() for each in run.weights for w in each.values()] == past
