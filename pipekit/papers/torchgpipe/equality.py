"""A pipelined module is the module that it wraps: outputs and gradients (torchgpipe, section 2)."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipekit import is_checkpointing, is_recomputing
from pipekit.engine import PipelinedModule
from pipekit.papers.torchgpipe.graph import backward_nodes


class Result(NamedTuple):
    """What a minibatch gave: its output, and the gradients of its input and of all parameters."""

    output: Tensor
    gradients: list[Tensor]


def step(model: nn.Module, x: Tensor, seed: int = 0) -> Result:
    """Run a minibatch forward and backward, with a mean of squares for loss."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    assert x.grad is not None
    parameters = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return Result(y.detach(), [x.grad, *parameters])


def largest_difference(one: Result, other: Result) -> float:
    """Return the largest |difference| of an element of the output or of a gradient."""
    pairs = zip([one[0], *one[1]], [other[0], *other[1]], strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def gradient_difference(one: Result, other: Result) -> float:
    """Return the largest |difference| of two gradients, over the second's norm."""
    pairs = zip(one.gradients, other.gradients, strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def outputs_are_those_of_microbatches(model: nn.Sequential, x: Tensor, m: int, n: int) -> bool:
    """Return whether the tasks F(i, j) give the bits of f(x_i), and f(x) but for rounding."""
    with torch.no_grad():
        pieces = torch.cat([model(piece) for piece in x.chunk(m)])
        found = PipelinedModule(model, _balance(model, n), chunks=m)(x)
        return torch.equal(found, pieces) and torch.allclose(found, model(x), rtol=1e-5, atol=1e-6)


def pipelined_gradient_difference(model: nn.Sequential, x: Tensor, m: int, n: int) -> float:
    """Return how far the pipeline's gradients are from the unsplit ones, relatively."""
    plain = step(deepcopy(model), x)
    pipelined = PipelinedModule(deepcopy(model), _balance(model, n), chunks=m)
    return gradient_difference(step(pipelined, x), plain)


def batch_norm_differences(m: int, rows: int) -> tuple[float, float]:
    """Return how far batch norms' outputs are from the unsplit ones': in training, in evaluation.

    Args:
        m: microbatches.
        rows: of the minibatch.
    """
    layers = nn.Sequential(nn.BatchNorm1d(8), nn.Tanh(), nn.BatchNorm1d(8))
    x = torch.randn(rows, 8)
    found = []
    for training in True, False:
        plain, pipelined = (deepcopy(layers).train(training) for _ in range(2))
        module = PipelinedModule(pipelined, [2, 1], chunks=m).train(training)
        with torch.no_grad():
            found.append(float((module(x) - plain(x)).abs().max()))
    return found[0], found[1]


def recomputation_difference(m: int, rows: int) -> float:
    """Return how far dropout's recomputed outputs, and all gradients, are from the first ones."""
    kept: dict[bool, list[Tensor]] = {True: [], False: []}
    found = []
    for mode in "always", "never":
        layers = nn.Sequential(
            _linear(6), nn.Dropout(0.5), _Keep(kept), _linear(6), nn.Dropout(0.3), _linear(3)
        )
        found.append(step(PipelinedModule(layers, [3, 3], chunks=m, checkpoint=mode), _rows(rows)))
    first, again = (torch.cat(kept[key]) for key in (False, True))
    # Backwards come in the reverse order of forwards.
    again = torch.cat(again.chunk(m)[::-1])
    return max(largest_difference(*found), float((first - again).abs().max()))


def fork_and_join(m: int, n: int) -> tuple[float, int]:
    """Return what the edges of order change in outputs and gradients, and the elements they carry.

    Args:
        m: microbatches.
        n: stages.
    """
    layers = nn.Sequential(*(_linear(6) for _ in range(n)))
    x = _rows(2 * m)
    modules = [PipelinedModule(layers, [1] * n, chunks=m, without=w) for w in ((), ("order",))]
    difference = largest_difference(*(step(module, x) for module in modules))
    carried: list[int] = []
    y = modules[0](x)
    for node in backward_nodes(y):
        node.register_hook(_counting(carried))
    y.sum().backward()
    assert len(carried) == m * n
    return difference, sum(carried)


def trains(model: Callable[[], nn.Sequential], balance: list[int], chunks: int, steps: int) -> bool:
    """Return whether a model that is only wrapped learns, as the model itself does.

    Args:
        model: makes it; its layers are as they are.
        balance: layers of each stage.
        chunks: microbatches.
        steps: of SGD with momentum, on one minibatch.
    """
    curves = []
    for wrapped in False, True:
        torch.manual_seed(0)
        module: nn.Module = model()
        x, y = torch.randn(12, 6), torch.randn(12, 3)
        if wrapped:
            module = PipelinedModule(module, balance, chunks=chunks)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curves.append(torch.tensor(losses))
    plain, pipelined = curves
    return bool(pipelined[-1] < pipelined[0]) and torch.allclose(
        plain, pipelined, rtol=1e-4, atol=1e-6
    )


def mlp(seed: int = 0) -> nn.Sequential:
    """Return eight small layers, some of which edit their input."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(inplace=True)),
        *(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Linear(8, 3)),
    )


def _balance(model: nn.Sequential, n: int) -> list[int]:
    return [len(model) // n + (stage < len(model) % n) for stage in range(n)]


def _linear(width: int) -> nn.Linear:
    torch.manual_seed(width)
    return nn.Linear(6, width)


def _rows(count: int) -> Tensor:
    return torch.linspace(-1, 1, 6 * count).view(count, 6)


def _counting(carried: list[int]) -> Callable[[Any, Any], None]:
    def count(_: Any, tokens: tuple[Tensor, ...]) -> None:
        carried.append(sum(token.numel() for token in tokens))

    return count


class _Keep(nn.Module):
    """Takes down what passes in a checkpointed forward (False) and when it is recomputed (True)."""

    def __init__(self, kept: dict[bool, list[Tensor]]) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if is_checkpointing() or is_recomputing():
            self.kept[is_recomputing()].append(x.detach().clone())
        return x
