"""The methods that are optimizers: against their equations in numpy, and on a pipeline."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipekit import Pipeline, oracle, schedules, staleness
from tests.engine.examples import data, different, mixed, values

LR, BETAS, EPS = 0.01, (0.9, 0.95), 1e-6


def rotated_by_hand(start: np.ndarray, gradients: list[np.ndarray], every: int) -> list[np.ndarray]:
    """Algorithms 1 and 2 of the paper, as they stand in the class's docstring."""
    m, n = start.shape
    weight, mean, square = start, np.zeros((m, n)), np.zeros((m, n))
    u, v, left, right = np.eye(m), np.eye(n), np.zeros((m, m)), np.zeros((n, n))
    path = []
    for t, g in enumerate(gradients):
        mean = BETAS[0] * mean + (1 - BETAS[0]) * g
        left = BETAS[1] * left + (1 - BETAS[1]) * g @ g.T
        right = BETAS[1] * right + (1 - BETAS[1]) * g.T @ g
        if t % every == 0:
            u, v = np.linalg.qr(left @ u)[0], np.linalg.qr(right @ v)[0]
        square = BETAS[1] * square + (1 - BETAS[1]) * (u.T @ g @ v) ** 2
        step = u.T @ mean @ v / np.sqrt(square + EPS)
        weight = weight - LR * (u @ step @ v.T)
        path.append(weight)
    return path


@pytest.mark.parametrize("every", [1, 3])
def test_basis_rotation_follows_its_algorithm(every: int) -> None:
    """For a square matrix: a longer side's curvature has no full rank, and determines no basis."""
    rng = np.random.default_rng(3)
    start, gradients = rng.normal(size=(3, 3)), [rng.normal(size=(3, 3)) for _ in range(7)]
    weight = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = staleness.BasisRotation([weight], lr=LR, betas=BETAS, eps=EPS, every=every)
    expected = rotated_by_hand(start, gradients, every)
    for gradient, then in zip(gradients, expected, strict=True):
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        assert weight.detach().numpy() == pytest.approx(then, rel=1e-6, abs=1e-9)


def test_what_is_no_matrix_is_not_rotated() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = staleness.BasisRotation([weight], lr=1.0, betas=(0.0, 0.0), eps=0.0)
    weight.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer.step()
    assert weight.tolist() == [-1.0, 1.0, -1.0]


def test_what_basis_rotation_refuses() -> None:
    with pytest.raises(ValueError, match="every must be at least 1 step, not 0"):
        staleness.BasisRotation([nn.Parameter(torch.zeros(2, 2))], every=0)


def test_nesterovs_step_looks_ahead_of_a_stale_gradient() -> None:
    """Dozat's NAdam: the momentum of the next step, and little of the gradient itself."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = staleness.nesterov(lr=0.1, beta1=0.99, beta2=0.9, weight_decay=0.5)([weight])
    w, mean, square, product = 1.0, 0.0, 0.0, 1.0
    for t, g in enumerate([0.3, -0.2, 0.5, 0.1], start=1):
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        now, following = (0.99 * (1 - 0.5 * 0.96 ** (s * 0.004)) for s in (t, t + 1))
        product *= now
        w *= 1 - 0.1 * 0.5
        mean, square = 0.99 * mean + 0.01 * g, 0.9 * square + 0.1 * g * g
        ahead = following * mean / (1 - product * following) + (1 - now) * g / (1 - product)
        w -= 0.1 * ahead / (math.sqrt(square / (1 - 0.9**t)) + 1e-8)
        assert weight.item() == pytest.approx(w, rel=1e-7)  # torch counts in float32


@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("name", ["nesterov", "basis rotation"])
def test_on_pipedream_their_bits_are_the_equations(name: str, transport: str) -> None:
    how: dict[str, Any] = {
        "balance": [2, 3, 3],
        "optimizer": {
            "nesterov": staleness.nesterov(lr=0.01),
            "basis rotation": lambda p: staleness.BasisRotation(p, lr=0.01, every=2),
        }[name],
        "loss": nn.MSELoss(),
    }
    batches = data(6)
    pipe = Pipeline(mixed(), schedules.pipedream(3), transport=transport, **values(**how))
    run = pipe.train(batches)
    truth = oracle.train(mixed(), batches, method="pipedream", **how)
    assert run.losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []
    pipe.close()
