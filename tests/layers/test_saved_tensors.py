"""Several look at what autograd saves, and the innermost says what it keeps."""

import torch
from torch import Tensor

from pipekit.layers.saved_tensors import saving


def test_the_outer_one_sees_what_the_inner_one_keeps() -> None:
    seen: list[Tensor] = []
    x = torch.tensor([2.0], requires_grad=True)
    with saving(seen.append, lambda _: torch.zeros(1)), saving(lambda t: 10 * t, lambda t: t / 5):
        y = x * x
    assert [tensor.item() for tensor in seen] == [2.0, 2.0]
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 2 * (2 * 2.0)


def test_behind_the_inner_one_the_outer_one_keeps_again() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    with saving(lambda t: 10 * t, lambda t: t / 10):
        with saving(lambda t: t, lambda _: torch.zeros(1)):
            pass
        y = x * x
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 4.0
