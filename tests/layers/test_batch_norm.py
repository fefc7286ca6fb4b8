"""Batch norm in microbatches: their own statistics, the whole batch's running averages."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import DeferredBatchNorm, PipelinedModule, convert_batch_norm


def network(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU(), nn.Conv2d(4, 2, 3)
    )


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("rows", [3, 8, 10])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_averages_are_those_of_whole_batches(
    momentum: float | None, rows: int, checkpoint: Any
) -> None:
    """Recomputed or not, and counted once a batch."""
    reference = network(momentum)
    model = PipelinedModule(
        network(momentum), [2, 2], chunks=4, checkpoint=checkpoint, deferred_batch_norm=True
    )
    for _ in range(3):
        x = torch.randn(rows, 1, 6, 6) + 2
        reference(x)
        model(x).sum().backward()
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(model.state_dict()[name], buffer, msg=name)


@pytest.mark.parametrize(("balance", "chunks"), [([2], 2), ([1, 1], 2), ([1, 1], 3)])
def test_each_microbatch_is_normalised_by_itself(balance: list[int], chunks: int) -> None:
    norm = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    model = PipelinedModule(copy.deepcopy(norm), balance, chunks=chunks, deferred_batch_norm=True)
    x = torch.randn(6, 1, 8, 8)
    y = model(x)
    assert torch.equal(y, torch.cat([norm(part) for part in x.chunk(chunks)]))
    assert not torch.allclose(y, norm(x))


def test_without_it_every_microbatch_counts() -> None:
    model = PipelinedModule(network(), [2, 2], chunks=4)
    model(torch.randn(8, 1, 6, 6)).sum().backward()
    assert model.state_dict()["1.num_batches_tracked"] == 4


class _Breaks(nn.Module):
    """Passes everything on until it is broken."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise ValueError("broken")
        return x


def test_a_minibatch_that_fails_leaves_nothing() -> None:
    breaks = _Breaks()
    layers = nn.Sequential(nn.BatchNorm1d(2), breaks, nn.Identity())
    model = PipelinedModule(layers, [2, 1], chunks=2, deferred_batch_norm=True)
    model(torch.randn(4, 2))
    breaks.broken = True
    with pytest.raises(ValueError, match="broken"):
        model(torch.randn(4, 2))
    so_far = [buffer for name, buffer in model.named_buffers() if name.startswith("0.batch")]
    assert [statistic.abs().sum() for statistic in so_far] == [0, 0, 0]


def test_outside_a_pipeline_it_is_ordinary() -> None:
    ordinary, deferred = network(), convert_batch_norm(network())
    assert isinstance(deferred.get_submodule("1"), DeferredBatchNorm)
    assert list(ordinary.state_dict()) == list(deferred.state_dict())
    x = torch.randn(8, 1, 6, 6)
    for _ in range(2):
        torch.testing.assert_close(deferred(x), ordinary(x))
    ordinary.eval()
    deferred.eval()
    torch.testing.assert_close(deferred(x), ordinary(x))


def test_channels_are_needed() -> None:
    with pytest.raises(ValueError, match=r"expected \[rows, channels, ...\]"):
        DeferredBatchNorm(3)(torch.ones(3))


class Own(nn.BatchNorm1d):
    """A subclass that computes as PyTorch's own does."""


class Activated(nn.BatchNorm1d):
    """One that does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def test_a_norm_that_is_used_twice_is_converted_wherever_it_is() -> None:
    norm = Own(3)
    calls: list[nn.Module] = []
    norm.register_forward_hook(lambda module, *_: calls.append(module))
    model = convert_batch_norm(nn.Sequential(norm, nn.Tanh(), nn.Sequential(norm)))
    assert isinstance(norm, DeferredBatchNorm)
    assert model.get_submodule("2.0") is model.get_submodule("0") is norm
    model(torch.randn(4, 3))
    assert calls == [norm, norm]


def test_it_is_converted_in_its_own_precision() -> None:
    norm = convert_batch_norm(nn.BatchNorm1d(3).double())
    ordinary = nn.BatchNorm1d(3).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(norm(x), ordinary(x))
    torch.testing.assert_close(norm.state_dict(), ordinary.state_dict())


def test_a_norm_that_computes_otherwise_is_refused() -> None:
    with pytest.raises(TypeError, match="1 is a Activated, which computes otherwise"):
        convert_batch_norm(nn.Sequential(nn.Linear(3, 3), Activated(3)))
