"""Copies of layers."""

import threading

import pytest
import torch
from torch import Tensor, nn

from pipekit.layers.module_state import copied, twin
from tests.engine.examples import mlp, pipeline


class Locked(nn.Module):
    """Has what nobody can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.lock = 1, threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError, match=r"copy of the model, and 1\.lock .*__deepcopy__"):
        copied(nn.Sequential(nn.Linear(2, 2), Locked()))
    with pytest.raises(TypeError, match=r"1\.lock"):
        pipeline(nn.Sequential(*mlp(6, 3), Locked()), "flush", [1, 1])


def test_a_twin_has_weights_of_its_own_and_the_same_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    bias = model.get_parameter("0.bias").requires_grad_(False)
    other = twin(model, [bias])
    model(torch.ones(4, 2))
    assert other.get_parameter("0.weight") is not model.get_parameter("0.weight")
    assert other.get_parameter("0.bias") is bias
    assert other.get_buffer("1.running_mean") is model.get_buffer("1.running_mean")
