"""All ways to spread a model over GPUs whose degrees divide what they split."""

import math
from collections.abc import Iterator
from itertools import product

from pipekit.performance.devices import Machine
from pipekit.performance.layout import ParallelLayout, on_gpus
from pipekit.performance.shapes import MLP, Experts, Shape

_LEAST_TOKENS = 4096
"""Of a sequence on each context-parallel rank: with fewer, messages cost more than they save."""
_CHUNKS, _MOST_SAMPLES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24), 8
_SERVER_GPUS = 8
"""Of a node; links that join more join a rack, and all-to-alls stay inside (Megatron-Bridge's
performance guide, Parallel mapping strategies with NVL72)."""


def layouts(
    known: Shape, kind: Machine, gpus: int, batch: int, seq_tokens: int
) -> Iterator[ParallelLayout]:
    """Yield the layouts of so many GPUs and samples a step, without recomputation."""
    layers = [layer for block, _ in known.blocks for layer in block]
    heads = math.gcd(*(layer.heads for layer in layers if not isinstance(layer, MLP | Experts)))
    experts = math.gcd(*(layer.count for layer in layers if isinstance(layer, Experts))) or 1
    most_ep = experts if kind.node_gpus <= _SERVER_GPUS else kind.node_gpus
    for tp in _divisors(math.gcd(gpus, heads), kind.node_gpus):
        for cp in _divisors(gpus // tp, max(seq_tokens // _LEAST_TOKENS, 1)):
            for pp in _divisors(gpus // (tp * cp), known.layers):
                dp = gpus // (tp * cp * pp)
                for samples in _divisors(batch // dp if batch % dp == 0 else 0, _MOST_SAMPLES):
                    rounds = batch // (dp * samples) % pp == 0
                    for (chunks, method), ep, zero in product(
                        _stages(known.layers, pp, rounds),
                        _divisors(math.gcd(tp * cp * dp, experts), most_ep),
                        _sharding(pp, dp * cp),
                    ):
                        yield on_gpus(
                            gpus,
                            batch,
                            tp=tp,
                            cp=cp,
                            pp=pp,
                            ep=ep,
                            chunks=chunks,
                            microbatch_samples=samples,
                            zero=zero,
                            method=method,
                        )


def _stages(layers: int, pp: int, rounds: bool) -> list[tuple[int, str]]:
    """Return how many virtual stages a rank can have, and the method.

    Megatron-LM interleaves whole rounds of microbatches, one for each rank.
    """
    most = (layers + 2) // pp if pp > 1 and rounds else 1
    return [(1, "flush"), *((chunks, "interleaved") for chunks in _CHUNKS if chunks <= most)]


def _sharding(pp: int, replicas: int) -> tuple[int, ...]:
    """Return stages of ZeRO: in a pipeline whole weights stay on their ranks between passes."""
    if replicas == 1:
        return (0,)
    return (1, 3) if pp == 1 else (1,)


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number above 0, up to a limit; none of 0."""
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
