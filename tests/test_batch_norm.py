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


def test_each_microbatch_is_normalised_by_itself() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(2), nn.Identity())
    model = PipelinedModule(copy.deepcopy(norm), [1, 1], chunks=2, deferred_batch_norm=True)
    x = torch.randn(6, 2)
    torch.testing.assert_close(model(x), torch.cat([norm(x[:3]), norm(x[3:])]))


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
