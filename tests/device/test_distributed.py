"""The transport between processes on accelerators, over communicators that keep order as NCCL's do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.engine.transports.processes import runner
from tests.device.in_order import InOrder, InOrderRunner
from tests.device.kind import on
from tests.device.test_pipeline import REPLICATED, build, by_method, skipping, tied
from tests.engine.examples import data, different, pairs


class Lengths(nn.Module):
    """From a tensor to a pair: the second, whole numbers, lies on the host and stays there."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.arange(len(x)) % 3 + 1


class Scale(nn.Module):
    """Use the lengths where they lie."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(6, 6), last

    def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
        x, lengths = pair
        assert lengths.device.type == "cpu"
        scaled = self.linear(x) * lengths.sum().item()
        return scaled if self.last else (scaled, lengths)


def with_lengths() -> nn.Sequential:
    torch.manual_seed(7)
    layers = [nn.Linear(6, 6), Lengths(), Scale(), Scale(), Scale(), Scale(last=True)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 3))


def trained(model: nn.Sequential, schedule: Any, devices: list[str], **how: Any) -> Any:
    pipeline = build(model, schedule, devices, **how)
    losses = [loss for _ in range(2) for loss in pipeline.train(data(3)).losses]
    return losses, dict(pipeline.state_dict())


def compare(model: Callable[[], nn.Sequential], schedule: pk.Schedule, **how: Any) -> None:
    """Train in one thread a rank, and as ever on the CPU."""
    workers = schedule.worker_count
    cpu_losses, cpu_state = trained(model(), schedule, ["cpu"] * workers, **how)
    original = runner.over_processes
    runner.over_processes = lambda *_: InOrderRunner()
    try:
        losses, state = trained(model(), schedule, on(4, workers), transport="distributed", **how)
    finally:
        runner.over_processes = original
    assert different(cpu_state, state) == []
    assert losses == cpu_losses


@pytest.mark.parametrize("method", ["flush", "2bw", "interleaved"])
@pytest.mark.parametrize("model", [pairs, skipping, with_lengths])
def test_messages(model: Callable[[], nn.Sequential], method: str) -> None:
    compare(model, by_method(method), clip_norm=0.1)


@pytest.mark.parametrize("schedule", REPLICATED)
def test_sums_of_replicas(schedule: str) -> None:
    """Their receives come before their sends: one batch of both, or all wait for ever."""
    stages = REPLICATED[schedule].stages
    compare(pairs, REPLICATED[schedule], balance=[8 // stages] * stages)


def test_sums_of_three() -> None:
    """Whoever is not the last has others on both sides."""
    compare(skipping, schedules.replicate(schedules.flush(1, 2), 3), balance=[8])


def test_sums_of_ties() -> None:
    compare(tied, by_method("flush"), loss_scale=8.0)


def test_a_channel_that_keeps_order_waits_for_ever_if_all_receive_first() -> None:
    """The channel is no easier than NCCL's: what the sums avoid does stop it."""
    network = InOrder(2)
    tensors = [torch.ones(2, device=f"sim:{rank}") for rank in range(4)]
    works = []
    for rank in range(2):
        network.join(rank)
        works.append(network.irecv(tensors[rank], 1 - rank))
        network.isend(tensors[rank], 1 - rank)
    assert not any(work.has_met for work in works)
    network = InOrder(2)
    for rank in range(2):
        network.join(rank)
        ends = [(network.irecv, tensors[rank]), (network.isend, tensors[rank + 2 * (not rank)])]
        ops = [network.P2POp(call, tensor, 1 - rank) for call, tensor in ends]
        works += network.batch_isend_irecv(ops)
    assert all(work.has_met for work in works[2:])
