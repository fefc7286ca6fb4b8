"""Ways of training with two workers, and two real ones over a slow link."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.pipedream import ddp
from experiments.pipedream.ddp import AFTER, COMPUTE, ENGINE, TRANSFER, WAIT_FREE
from pipekit.clusters.namespaces import available

REASON = available()


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
    counts = found.groupby("way")["seconds"].count()
    assert counts.to_dict() == dict.fromkeys([COMPUTE, WAIT_FREE, AFTER, ENGINE], 2) | {
        TRANSFER: ddp.TRANSFERS
    }
    middle = found.groupby("way")["seconds"].median()
    physics = 0.7 * sum(p.nbytes for p in ddp.network().parameters()) / 125e6
    assert middle[[WAIT_FREE, AFTER, ENGINE]].min() > physics  # an idle link lets a burst through
    assert middle[TRANSFER] > 0.9 * ddp.TRANSFERRED_BYTES / 125e6


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_failing_worker_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module: $2 >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(RuntimeError, match=f"exit code 3:\n.*no such module: {ddp.__name__}"):
        ddp.measure("1gbit", rows=4, steps=1, repeats=1)
