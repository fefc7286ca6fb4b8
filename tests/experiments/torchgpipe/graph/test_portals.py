"""Bytes over links are those of the closed form, with portals and without."""

import torch

from experiments.torchgpipe.graph import portals
from pipekit.layers.skips import inlined
from pipekit.models import unet


def test_counted_bytes_are_the_closed_forms() -> None:
    torch.manual_seed(0)
    model, x, balance = unet(1, 2), torch.randn(2, 3, 64, 64), [5, 12, 5]
    straight = portals.counted(model, x, balance, 2)
    around = portals.counted(inlined(model), x, balance, 2)
    assert straight == portals.closed_form(model, x, balance, portals=True)
    assert around == portals.closed_form(model, x, balance, portals=False)
    assert (0, 2) in straight
    assert (0, 2) not in around
    assert set(portals.copies(model, balance)["without"]) <= {1, 2}


def test_a_parallel_net_copies_ever_more_tensors() -> None:
    found = portals.counted(portals.parallel(4, 2), torch.randn(4, 2), [1] * 4, 2)
    one = 4 * 2 * 4
    assert [found[j, j + 1] for j in range(3)] == [one, 2 * one, 3 * one]
