"""Deferred batch norm."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from tests.people.torchgpipe.gpipe import MODES, gpipe


def tilted(rows: int = 16) -> Tensor:
    """Return images whose channels and rows have other means and variances."""
    scales = torch.tensor([1.0, 10.0, 100.0])[None, :, None, None]
    return torch.rand(rows, 3, 8, 8) * scales + 2.0 ** torch.arange(rows)[:, None, None, None] / 99


def deferred(layers: list[nn.Module], chunks: int = 4, **how: Any) -> pk.PipelinedModule:
    split = [len(layers)]
    return gpipe(copy.deepcopy(layers), split, chunks=chunks, deferred_batch_norm=True, **how)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("mode", MODES)
def test_running_averages_are_the_whole_batchs(mode: Any, momentum: float | None) -> None:
    norm = nn.BatchNorm2d(3, momentum=momentum)
    module, x = deferred([norm], checkpoint=mode), tilted()
    for _ in range(2):
        module(x).mean().backward()
        norm(x)
    found, wanted = module.state_dict(), nn.Sequential(norm).state_dict()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.eval()(x), norm.eval()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("mode", ["never", "always"])
def test_each_microbatch_is_normalized_by_its_own(
    mode: Any, chunks: int, needs_gradient: bool
) -> None:
    norm, x = nn.BatchNorm2d(3), tilted()
    module = deferred([norm], chunks, checkpoint=mode)
    inputs = [x.clone().requires_grad_(needs_gradient) for _ in range(2)]
    one = module(inputs[0])
    other = torch.cat([norm(part) for part in inputs[1].chunk(chunks)])
    torch.testing.assert_close(one, other)
    for output in one, other:
        output.square().mean().backward()
    torch.testing.assert_close(
        [inputs[0].grad, *(p.grad for p in module.parameters())],
        [inputs[1].grad, *(p.grad for p in norm.parameters())],
    )
    assert not any(buffer.requires_grad for buffer in module.buffers())


def test_evaluation_stays_near_that_of_the_whole_batch_while_it_trains() -> None:
    norm = nn.BatchNorm2d(3)
    module = deferred([norm])
    steppers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, norm)]
    for _ in range(5):
        x = tilted()
        for each, stepper in zip((module, norm), steppers, strict=True):
            stepper.zero_grad()
            each.train()(x).sum().backward()
            stepper.step()
        torch.testing.assert_close(module.eval()(x), norm.eval()(x), atol=0.1, rtol=0.01)


def test_other_layers_see_other_statistics_and_so_train_otherwise() -> None:
    layers = [nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)]
    plain, module, x = nn.Sequential(*layers), deferred(layers), tilted()
    outputs = [each(x) for each in (plain, module)]
    assert not torch.allclose(outputs[0], outputs[1])
    averages = [each.get_buffer("1.running_mean") for each in (plain, module)]
    torch.testing.assert_close(averages[0], averages[1])
    for each, output in zip((plain, module), outputs, strict=True):
        output.square().sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
        each(x)
    one, other = (each.state_dict() for each in (plain, module))
    for name in "0.weight", "1.running_mean":
        assert not torch.allclose(one[name], other[name])


def test_norms_without_running_averages_stay_as_they_are() -> None:
    norm, x = nn.BatchNorm2d(3, track_running_stats=False), tilted()
    module = deferred([norm], chunks=1)
    assert torch.equal(module(x), norm(x))
    assert [*module.state_dict()] == ["0.weight", "0.bias"]


def test_a_norm_is_converted_once() -> None:
    norm = pk.convert_batch_norm(nn.BatchNorm2d(3))
    assert pk.convert_batch_norm(norm) is norm
    assert isinstance(norm, pk.DeferredBatchNorm)
