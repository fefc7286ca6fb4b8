import pytest
import torch
from torch import nn

from experiments.pipedream.staleness import replicated as staleness
from pipekit import Plan, Profile
from pipekit.clusters import flat
from tests.emulation.own_time import own_time


@pytest.mark.parametrize("replicas", [2, 3])
def test_shards_have_every_parameter_once(replicas: int) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    batches = [(torch.randn(2, 5), torch.randn(2, 2))] * (2 * replicas + 1)
    assert staleness.misplaced_parameters(model, batches, replicas) == 0


def test_gradients_leave_when_the_last_layers_backward_ends() -> None:
    """Of the emulation, in a time of its own: three layers of 20 ms, the last of them first.

    That they leave before the whole backward ends is a real training's test, too.
    """
    profile = Profile.uniform(3, 0.005, 0.02, parameter_bytes=30e6)
    with own_time():
        sent, ended = staleness.first_send(
            profile, Plan.by_hand([3], replicas=[2]), flat(2, 1e13), 4
        )
    assert [sent, ended] == pytest.approx([0.02, 0.06])


def test_the_first_sum_begins_when_a_layers_backward_is_done() -> None:
    assert staleness.simulated_first_sum(0.02) == pytest.approx(0.02)
