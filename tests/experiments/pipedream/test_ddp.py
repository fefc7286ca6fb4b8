"""Stalls over slow links: the sums behind the table, and two real workers."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.pipedream import ddp
from experiments.pipedream.ddp import AFTER, COMPUTE, ENGINE, WAIT_FREE, WAYS, Measured
from pipekit.clusters.namespaces import available

REASON = available()
STEPS = {COMPUTE: [[0.1, 0.1, 9]], WAIT_FREE: [[0.4]], AFTER: [[0.5]], ENGINE: [[0.5]]}
MEASURED = Measured("80mbit", STEPS, [1.0, 0.8, 0.9])


def test_stalls_are_what_is_beyond_the_median_compute() -> None:
    assert MEASURED.stall_s(WAIT_FREE) == pytest.approx(0.3)


def test_a_turns_throughput_is_compared_with_the_same_turns() -> None:
    turns = {WAIT_FREE: [[1.0, 1.0], [2.0, 2.0]], ENGINE: [[2.0, 2.0], [2.0, 2.0]]}
    assert Measured(None, turns, []).throughput_ratios == [0.5, 1.0]


def test_a_transfer_is_compared_with_bytes_over_bandwidth() -> None:
    assert MEASURED.transfer_ratio == pytest.approx(0.9 / 2.5690112)  # pool3 at 10 MB/s


def test_the_exchange_at_the_links_rate() -> None:
    parameter_bytes = sum(p.nbytes for p in ddp.network().parameters())
    assert MEASURED.exchange_s == pytest.approx(parameter_bytes / 10e6)
    assert Measured(None, {}, []).exchange_s == 0


def test_the_linear_layers_have_nearly_all_weights() -> None:
    model = ddp.network()
    linear = sum(p.numel() for m in model if isinstance(m, nn.Linear) for p in m.parameters())
    assert linear / sum(p.numel() for p in model.parameters()) > 0.99
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_a_step_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    weight = next(model.parameters())
    before = weight.detach().clone()
    batch = torch.rand(3, 2, 2), torch.tensor([0, 1, 1])
    assert len(ddp.timed(ddp.step_of(model), [batch] * 3)) == 2
    assert not torch.equal(before, weight)


def test_sums_after_the_backward_are_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(tensor: Tensor) -> None:  # the other worker has the same gradients
        tensor *= 2

    monkeypatch.setattr("torch.distributed.all_reduce", double)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    weights = []
    for before_update in (None, ddp.average_gradients):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        ddp.step_of(model, before_update)(torch.ones(1, 2, 2), torch.tensor([0]))
        weights.append(next(model.parameters()))
    assert torch.equal(weights[0], weights[1])


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_workers_over_a_slow_link() -> None:
    found = ddp.measure("1gbit", rows=4, steps=2, repeats=1)
    assert set(found.steps) == {COMPUTE, *WAYS}
    assert all([len(turn) for turn in turns] == [2] for turns in found.steps.values())
    physics = 0.7 * found.exchange_s  # an idle link lets a burst through at once
    for way in WAYS:
        assert found.step_s(way) > physics > 0
    assert len(found.transfers) == ddp.TRANSFERS
    assert found.transfer_ratio > 0.9


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_failing_worker_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module: $2 >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(RuntimeError, match=f"exit code 3:\n.*no such module: {ddp.__name__}"):
        ddp.measure("1gbit", rows=4, steps=1, repeats=1)
