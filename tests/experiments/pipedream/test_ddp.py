"""Ways of training with two workers, and two real ones over a slow link."""

import pytest
import torch
from torch import Tensor, nn

from experiments.pipedream import ddp
from experiments.pipedream.ddp import AFTER, COMPUTE, ENGINE, TRANSFER, WAIT_FREE
from pipekit.clusters.namespaces import available

REASON = available()


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
