"""A pipelined module is the module that it wraps: outputs and gradients (torchgpipe, section 2)."""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from experiments.study.differences import noted
from experiments.torchgpipe.graph.edges import backward_nodes
from pipekit import is_checkpointing, is_recomputing
from pipekit.engine import PipelinedModule


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


def outputs_are_those_of_microbatches(model: nn.Sequential, x: Tensor, m: int, n: int) -> bool:
    """Return whether the tasks F(i, j) give the bits of f(x_i), and f(x) but for rounding."""
    with torch.no_grad():
        pieces = torch.cat([model(piece) for piece in x.chunk(m)])
        found = PipelinedModule(model, _balance(model, n), chunks=m)(x)
        return torch.equal(found, pieces) and torch.allclose(found, model(x), rtol=1e-5, atol=1e-6)


def pipelined_gradient_difference(model: nn.Sequential, x: Tensor, m: int, n: int) -> float:
    """Return how far the pipeline's gradients are from the unsplit ones, relatively, at most."""
    plain = step(deepcopy(model), x)
    pipelined = step(PipelinedModule(deepcopy(model), _balance(model, n), chunks=m), x)
    pairs = zip(pipelined.gradients, plain.gradients, strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def batch_norm_differences(m: int, rows: int) -> tuple[float, float]:
    """Return how far batch norms' outputs are from the unsplit ones': in training, in evaluation.

    There are ``rows`` in a minibatch.
    """
    layers = nn.Sequential(nn.BatchNorm1d(8), nn.Tanh(), nn.BatchNorm1d(8))
    x = torch.randn(rows, 8)

    def difference(training: bool) -> float:
        plain, pipelined = (deepcopy(layers).train(training) for _ in range(2))
        module = PipelinedModule(pipelined, [2, 1], chunks=m).train(training)
        with torch.no_grad():
            return float((module(x) - plain(x)).abs().max())

    return difference(True), difference(False)


def recomputation_difference(m: int, rows: int) -> float:
    """Return how far dropout's recomputed outputs, and all gradients, are from the first ones."""

    def pass_and_output(_: nn.Module, __: Tensor, y: Tensor) -> tuple[bool, bool, Tensor]:
        return is_checkpointing(), is_recomputing(), y.detach().clone()

    results = []
    for mode in ("always", "never"):
        layers = nn.Sequential(
            *(_linear(6), nn.Dropout(0.5), _linear(6), nn.Dropout(0.3), _linear(3))
        )
        kept = noted([layers[1]], pass_and_output)
        module = PipelinedModule(layers, [2, 3], chunks=m, checkpoint=mode)
        results.append((step(module, _rows(rows)), kept))
    (always, kept), (never, _) = results
    first = torch.cat([y for checkpointing, again, y in kept if checkpointing and not again])
    # Backwards come in the reverse order of forwards.
    second = torch.cat([y for _, again, y in kept if again][::-1])
    return max(largest_difference(always, never), float((first - second).abs().max()))


def fork_and_join(m: int, n: int) -> tuple[float, int]:
    """Return what the edges of order change in outputs and gradients, and the elements they carry.

    The module has a layer a stage.
    """
    layers = nn.Sequential(*(_linear(6) for _ in range(n)))
    x = _rows(2 * m)
    modules = [PipelinedModule(layers, [1] * n, chunks=m, without=w) for w in ((), ("order",))]
    difference = largest_difference(*(step(module, x) for module in modules))
    carried: list[int] = []
    y = modules[0](x)
    for node in backward_nodes(y):
        node.register_hook(lambda _, tokens: carried.append(sum(t.numel() for t in tokens)))
    y.sum().backward()
    assert len(carried) == m * n
    return difference, sum(carried)


def trains(model: Callable[[], nn.Sequential], balance: list[int], chunks: int, steps: int) -> bool:
    """Return whether a model that is only wrapped learns, as the model itself does.

    It takes ``steps`` of SGD with momentum, on one minibatch.
    """

    def losses(wrap: Callable[[nn.Sequential], nn.Module]) -> torch.Tensor:
        torch.manual_seed(0)
        module = wrap(model())
        x, y = torch.randn(12, 6), torch.randn(12, 3)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(x), y)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return torch.tensor(found)

    plain = losses(lambda layers: layers)
    pipelined = losses(lambda layers: PipelinedModule(layers, balance, chunks=chunks))
    same = torch.allclose(plain, pipelined, rtol=1e-4, atol=1e-6)
    return same and bool(pipelined[-1] < pipelined[0])


def mlp(seed: int = 0) -> nn.Sequential:
    """Return eight small layers, some of which edit their input."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(inplace=True)),
        *(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Linear(8, 3)),
    )


def _balance(model: nn.Sequential, n: int) -> list[int]:
    return [len(part) for part in torch.arange(len(model)).tensor_split(n)]


def _linear(width: int) -> nn.Linear:
    torch.manual_seed(width)
    return nn.Linear(6, width)


def _rows(count: int) -> Tensor:
    return torch.linspace(-1, 1, 6 * count).view(count, 6)
