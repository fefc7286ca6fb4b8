"""What a layer does later than on the first microbatch, and in which mode that one is tried."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipekit import PipelinedModule
from tests.engine.examples import (
    Batches,
    by_equations,
    data,
    mlp,
    pipeline,
    trained,
    unlike,
    unlike_equations,
)
from tests.engine.parametrized import first_over_processes

MARK = 100.0


class DrawsIfMarked(nn.Module):
    """Drops numbers of the batches whose first number says so, as a scheduled dropout does."""

    def forward(self, x: Tensor) -> Tensor:
        marked = bool((x[:, 0] > MARK / 2).all())
        dropped = nn.functional.dropout(x[:, 1:], 0.5 if marked else 0.0).tanh()
        return torch.cat([x[:, :1] / MARK, dropped], 1)


class CheckpointsIfMarked(DrawsIfMarked):
    """Likewise, but computes the same again in its backward."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        y: Tensor = checkpoint(super().forward, x.requires_grad_(), use_reentrant=False)
        return y


def marked(batches: int, since: int) -> Batches:
    """Batches whose first column is marked from one of them on."""
    found = data(batches)
    for number, (x, _) in enumerate(found):
        x[:, 0] = MARK if number >= since else 0.0
    return found


def drawing(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(layer, nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("recompute", ["except_last", "never"])
@first_over_processes("method", ["2bw", "gpipe"])
def test_a_layer_that_first_draws_in_mid_run(method: str, recompute: str, transport: str) -> None:
    batches, model = marked(4, since=2), drawing(DrawsIfMarked())
    how: dict[str, Any] = {"recompute": recompute, "transport": transport}
    state = torch.get_rng_state()
    assert unlike_equations(model, batches, method, [2, 2], **how) == []
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_that_first_draws_in_mid_run_of_a_module() -> None:
    """Its recomputed forwards draw the numbers of the first ones."""
    gradients = []
    for how in ("never", "always"):
        model = PipelinedModule(drawing(DrawsIfMarked()), [2, 2], chunks=2, checkpoint=how)
        torch.manual_seed(7)
        for x, _ in marked(2, since=1):
            model(x).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert torch.equal(one, other)


def test_a_layer_that_first_draws_again_in_a_later_backward() -> None:
    pipes = [
        pipeline(drawing(layer()), "gpipe", [2, 2])
        for layer in (DrawsIfMarked, CheckpointsIfMarked)
    ]
    assert unlike(*(trained(pipe, marked(4, since=2)) for pipe in pipes)) == []


# --- the trial -----------------------------------------------------------------------------------


def normalised() -> nn.Sequential:
    """Batch norm, and layers that edit their inputs, of which one does so in training only."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(0.5, inplace=True),
        nn.ReLU(inplace=True),
        nn.Linear(6, 3),
    )


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_evaluation_comes_first(transport: str) -> None:
    """With rows of which there is one, which batch norm refuses in training."""
    batches, balance = data(3), [2, 1, 1, 1]
    pipe = pipeline(normalised(), "flush", balance, recompute="always", transport=transport)
    model = normalised().eval()
    few = data(2, rows=1)
    with torch.no_grad():
        expected = [nn.functional.mse_loss(model(x), y).item() for x, y in few]
    assert pipe.evaluate(few) == pytest.approx(sum(expected) / 2, rel=1e-6)
    truth = by_equations(normalised(), batches, "flush", balance)
    assert unlike(trained(pipe, batches), truth) == []


def test_a_module_is_evaluated_first() -> None:
    x = data(1, rows=2)[0][0]
    model = PipelinedModule(normalised(), [2, 1, 1, 1], chunks=2, checkpoint="always")
    plain = normalised().eval()
    # Kernels may round a row in another way if it comes with others.
    assert torch.equal(model.eval()(x), torch.cat([plain(row) for row in x.split(1)]))
    model.train()
    with pytest.raises(ValueError, match="of one row there is no variance"):
        model(x)
    output = model(data(1)[0][0])
    output.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_the_first_call_may_be_in_inference_mode(training: bool) -> None:
    batches = data(1)
    module = PipelinedModule(mlp(6, 6, 3), [1, 1], chunks=2).train(training)
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    x, y = batches[0]
    plain = mlp(6, 6, 3)
    expected = torch.cat([plain(rows) for rows in x.chunk(2)])
    with torch.inference_mode():
        inside = data(1)
        assert torch.equal(module(inside[0][0]), expected)
        value = pipe.evaluate(inside)
    assert value == pytest.approx(nn.functional.mse_loss(expected, y).item(), rel=1e-6)
    found: Any = module(x)
    found.sum().backward()
    assert len(pipe.train(batches).losses) == 1
