"""Megatron-LM's GPTs and pipelines: operations, days, bubbles and what interleaving gains."""

from functools import cache
from math import inf

import torch
from torch import nn

from pipekit import schedules
from pipekit.clusters import Cluster, Device, Level
from pipekit.models import gpt
from pipekit.models.transformer import GPTLayout
from pipekit.profiling import Profile
from pipekit.profiling.work import counted_work
from pipekit.schedules import Op, Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace

V, S = 51_200, 2_048  # tokens of the vocabulary and of a sequence (section 5.1)
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


P, T = 12, 8  # section 5.3.2's pipeline: 96 GPUs, 8 of each server for tensor parallelism
FLOPS = 140e12  # a second and GPU (section 5.1)
CARD = 200e9 / 8  # bytes a second of an InfiniBand card, of which each GPU has one (section 5)

A100 = Device("A100", 80 * 2**30, {}, inf)


def pipeline(p: int, m: int, v: int = 1) -> Schedule:
    """Return a batch of the default schedule, or of the interleaved one with v stages a device."""
    if v == 1:
        return schedules.flush(p, m).take(1)
    return schedules.interleaved(p * v, m, workers=p).take(1)


def bubble(schedule: Schedule, backward: float = 2) -> float:
    """Return the idle time of a device over its ideal time; a forward takes one slot (2.2.1)."""
    slots = {Op.FORWARD: 1, Op.BACKWARD: backward, Op.UPDATE: 0}
    share = Trace.from_schedule(schedule, slots, batches=1).bubble
    return share / (1 - share)


@cache
def seconds(m: int, v: int, scatter_gather: bool = True, waits: bool = False) -> float:
    """Return how long GPT-3 takes for m microbatches of one sequence each (5.3.2, 5.7; simulated).

    Without scatter/gather each GPU sends the whole of what its stage gives, else its t-th part
    (4.1). ``waits``: a device computes nothing while it sends.
    """
    forward = GPT_3.layers * block_flops(GPT_3)[0] / (P * v * T * FLOPS)
    sent_bytes = 2 * S * GPT_3.hidden / (T if scatter_gather else 1)
    waiting = waits * sent_bytes / CARD
    costs = Profile.uniform(
        P * v, forward + waiting, 3 * forward + waiting, output_bytes=sent_bytes
    )
    links = None if waits else Cluster("A100s", A100, (Level("InfiniBand", P, CARD),))
    return simulate(pipeline(P, m, v), costs, cluster=links).makespan_s


def gain(m: int, v: int, **how: bool) -> float:
    return 100 * (seconds(m, 1, **how) / seconds(m, v, **how) - 1)
