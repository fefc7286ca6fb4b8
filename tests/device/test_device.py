"""The simulated accelerator does what a real one does."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.device.simulated.process import simulated
from tests.engine.examples import in_backward


def test_every_thread_has_its_own_current_device_and_stream() -> None:
    seen = []

    def look() -> None:
        seen.append(torch.empty(0, device="sim").device.index)
        torch.accelerator.set_device_index(3)
        seen.append(torch.accelerator.current_stream("sim:1").stream_id)

    torch.accelerator.set_device_index(2)
    with torch.Stream("sim:1"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [0, 0], seen
    assert torch.accelerator.current_device_index() == 2
    torch.accelerator.set_device_index(0)


def test_a_generator_of_the_device_draws_what_the_cpu_draws() -> None:
    torch.manual_seed(3)
    drawn = [torch.rand(5, device=f"sim:{d}").tolist() for d in (0, 1, 0)]
    torch.manual_seed(3)
    expected = [torch.rand(5).tolist(), torch.rand(5).tolist()]
    assert drawn == [expected[0], expected[0], expected[1]]
    state = torch.get_device_module("sim").get_rng_state("sim:0")
    first = torch.randn(4, device="sim:0")
    torch.get_device_module("sim").set_rng_state(state, "sim:0")
    assert torch.equal(first.cpu(), torch.randn(4, device="sim:0").cpu())
    own = torch.Generator("sim:2").manual_seed(7)
    assert torch.equal(
        torch.randn(4, device="sim:2", generator=own).cpu(),
        torch.randn(4, generator=torch.Generator().manual_seed(7)),
    )
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(4, device="sim:1", generator=own)


def test_events_time_only_what_is_over_and_on_one_device() -> None:
    first, last = (torch.Event("sim:0", enable_timing=True) for _ in range(2))
    first.record()
    torch.ones(1000, device="sim:0").sort()
    last.record()
    with pytest.raises(RuntimeError, match="completed"):
        first.elapsed_time(last)
    last.synchronize()
    assert first.elapsed_time(last) > 0
    elsewhere = torch.Event("sim:1", enable_timing=True)
    elsewhere.record(torch.accelerator.current_stream("sim:1"))
    elsewhere.synchronize()
    with pytest.raises(RuntimeError, match="device"):
        first.elapsed_time(elsewhere)
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        last.record(torch.accelerator.current_stream("sim:1"))


def _convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Linear(8, 5),
    )


def _attention() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(9, 8), _SelfAttention(), nn.Flatten(), nn.Linear(48, 5))


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).movedim(2, 0).transpose(-2, -3)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(-2, -3).flatten(-2)


def _train(device: str, network: str, how: str) -> list[torch.Tensor]:
    """Train a network in the plain way; return its losses and state on the CPU."""
    torch.manual_seed(0)
    model = {"convnet": _convnet, "attention": _attention}[network]()
    batches = [
        (
            torch.rand(6, 1, 8, 8) if network == "convnet" else torch.randint(9, (6, 6)),
            torch.randint(5, (6,)),
        )
        for _ in range(4)
    ]
    model.to(device)
    torch.manual_seed(1)
    optimizer: torch.optim.Optimizer
    if "sgd" in how:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
    scaler = torch.amp.GradScaler(device.split(":")[0], init_scale=256.0, enabled="scale" in how)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled="autocast" in how):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        if "clip" in how:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach().cpu())
    return losses + [tensor.cpu() for tensor in model.state_dict().values()]


@pytest.mark.parametrize("how", ["sgd", "adam", "sgd clip", "sgd autocast", "adam scale clip"])
@pytest.mark.parametrize("network", ["convnet", "attention"])
def test_a_model_is_trained_to_the_bits_of_the_cpu(network: str, how: str) -> None:
    ours, cpus = _train("sim:1", network, how), _train("cpu", network, how)
    differ = [i for i, (a, b) in enumerate(zip(ours, cpus, strict=True)) if not torch.equal(a, b)]
    assert not differ, differ
    assert all(a.dtype == b.dtype for a, b in zip(ours, cpus, strict=True))


def test_a_backward_runs_in_the_stream_of_its_forward() -> None:
    side = torch.Stream("sim:0")
    seen = []

    def look(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(torch.accelerator.current_stream("sim:0").stream_id)
        return gradient.clone()

    w = torch.ones(3, device="sim:0", requires_grad=True)
    side.wait_stream(torch.accelerator.current_stream("sim:0"))
    with side:
        y = in_backward(look, w) * 2
    torch.accelerator.current_stream("sim:0").wait_stream(side)
    y.sum().backward()
    assert seen == [side.stream_id], seen
    assert w.grad is not None
    assert w.grad.tolist() == [2, 2, 2]
    assert simulated().take_races() == []
