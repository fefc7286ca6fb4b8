"""The paper's GPTs, counted from pipekit's own: parameters, operations, days of training."""

from functools import cache

import torch
from torch import nn

from pipekit.models import gpt
from pipekit.models.transformer import GPTLayout
from pipekit.profiling.work import counted_work

V, S = 51_200, 2_048
"""Tokens of the vocabulary and of a sequence (section 5.1)."""

GPT_3 = GPTLayout(96, 12_288, 96)  # section 5.3.2
GPT_530B = GPTLayout(105, 20_480, 128)
GPT_1T = GPTLayout(128, 25_600, 160)

TABLE_1 = {
    GPTLayout(24, 2_304, 24): 1,
    GPTLayout(30, 3_072, 32): 1,
    GPTLayout(36, 4_096, 32): 1,
    GPTLayout(40, 6_144, 48): 1,
    GPTLayout(48, 8_192, 64): 2,
    GPTLayout(60, 10_240, 80): 4,
    GPTLayout(80, 12_288, 96): 8,
    GPTLayout(96, 16_384, 128): 16,
    GPT_530B: 35,
    GPT_1T: 64,
}
"""The networks of Table 1 in its order, each with its p."""


def parameters(network: GPTLayout, embeddings: bool = True) -> int:
    """Return how many a network has, with or without what stands outside of its blocks."""
    model = _one_block(network)
    block, whole = (sum(p.numel() for p in part.parameters()) for part in (model[1], model))
    return network.layers * block + embeddings * (whole - block)


def block(network: GPTLayout) -> nn.Sequential:
    """Return one of a network's equal layers, of shapes without numbers."""
    return nn.Sequential(_one_block(network)[1])


def block_flops(network: GPTLayout) -> tuple[int, int]:
    """Return the operations of a block's forward and backward, for one sequence."""
    return _flops(_one_block(network)[1], network.hidden)


def logit_flops(network: GPTLayout) -> tuple[int, int]:
    """Return the same of the last layer."""
    return _flops(_one_block(network)[-1], network.hidden)


def sequence_flops(network: GPTLayout) -> int:
    """Return the operations of training on one sequence, blocks' forwards twice (section 5.1)."""
    forward, backward = block_flops(network)
    return network.layers * (2 * forward + backward) + sum(logit_flops(network))


def days(network: GPTLayout, tokens: float, gpus: int, teraflops: float) -> float:
    """Return how long training takes at so many operations a second and GPU, by their count."""
    return sequence_flops(network) * tokens / S / (gpus * teraflops * 1e12) / 86_400


def days_by_parameters(network: GPTLayout, tokens: float, gpus: int, teraflops: float) -> float:
    """Return the same by the parameters: 8 T P / (n X), equation (4)."""
    return 8 * tokens * parameters(network) / (gpus * teraflops * 1e12) / 86_400


@cache
def _one_block(network: GPTLayout) -> nn.Sequential:
    return gpt(1, network.hidden, network.heads, V, S, tied=True, device="meta")


@cache
def _flops(layer: nn.Module, hidden: int) -> tuple[int, int]:
    x = torch.empty(1, S, hidden, device="meta", requires_grad=True)
    with counted_work() as forward:
        y = layer(x)
    with counted_work() as backward:
        y.sum().backward()
    return forward.flops, backward.flops
