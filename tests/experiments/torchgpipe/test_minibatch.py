"""What devices do in a minibatch, and what crosses the links between them."""

import torch

from experiments.torchgpipe import minibatch
from pipekit.layers.skips import inlined
from pipekit.models import unet


def test_a_device_that_waits_before_it_recomputes_is_seen() -> None:
    drawn = minibatch.figure3(2, 3, 3)
    assert minibatch.recomputes_before_the_gradient(drawn) == [True, True]
    assert minibatch.recomputes_before_the_gradient(["receive", "F'", "B", "send"]) == [False]


def test_what_devices_do() -> None:
    found = minibatch.journals(3, 2, late_s=0.02)
    assert found == [minibatch.figure3(device, 3, 2) for device in (1, 2, 3)]


def test_stock_checkpoints_wait_for_the_gradient() -> None:
    assert minibatch.journals(2, 2, stock=True)[0][-6:] == ["receive", "F'", "B"] * 2


def test_counted_bytes_are_the_closed_forms() -> None:
    torch.manual_seed(0)
    model, x, balance = unet(1, 2), torch.randn(2, 3, 64, 64), [5, 12, 5]
    straight = minibatch.counted(model, x, balance, 2)
    around = minibatch.counted(inlined(model), x, balance, 2)
    assert straight == minibatch.closed_form(model, x, balance, portals=True)
    assert around == minibatch.closed_form(model, x, balance, portals=False)
    assert ((0, 2) in straight, (0, 2) in around) == (True, False)
