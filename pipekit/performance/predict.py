"""A training becomes a step: the terms of each stage, dealt out and replayed by a table."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from pipekit.performance import replicas
from pipekit.performance.attention import attention, latent_attention
from pipekit.performance.experts import experts
from pipekit.performance.kernels import Passes, total
from pipekit.performance.mamba import mamba
from pipekit.performance.mlp import mlp
from pipekit.performance.shapes import (
    MLP,
    Attention,
    Block,
    Experts,
    LatentAttention,
    Layer,
    Mamba,
)
from pipekit.performance.step import Step
from pipekit.performance.training import Training
from pipekit.performance.vocabulary import embedding, head

_SYNCHRONOUS = Experts, Mamba
"""Layers whose host waits for the device: it reads how many tokens each expert has, or its
launches follow no long product that they could hide behind."""


def step(run: Training) -> Step:
    """Return the step of a training.

    Raises:
        ValueError: the layout does not suit the model.
    """
    layout = run.layout
    layer, ends = _mean_layer(run), _vocabulary(run)
    last = ends[-1].forward_s + ends[-1].backward_s
    counts = layers_of_stages(
        run.shape.layers,
        layout.stages,
        0 if layout.spreads_vocabulary else last / (layer.forward_s + layer.backward_s),
    )
    passes = [
        total((Passes(count * layer.forward_s, count * layer.backward_s), end))
        for count, end in zip(counts, ends, strict=True)
    ]
    workers = [
        sum(each.forward_s + each.backward_s for each in passes[rank :: layout.pp])
        for rank in range(layout.pp)
    ]
    return Step(
        tuple(each.forward_s for each in passes),
        tuple(each.backward_s for each in passes),
        layout.microbatches,
        transfer_s=_transfers(run),
        method=layout.method,
        workers=layout.pp,
        after_s=replicas.seconds(run, max(workers)),
    )


def _vocabulary(run: Training) -> list[Passes]:
    """Return what embedding, heads, and blocks that predict further tokens add to each stage."""
    layout, predictors = run.layout, run.shape.predictors
    first = _on_host(run, embedding(run))
    last = total([_on_host(run, head(run))] * (1 + predictors) + [_mean_layer(run)] * predictors)
    found = [Passes()] * layout.stages
    if not layout.spreads_vocabulary:
        found[0] = total((found[0], first))
        found[-1] = total((found[-1], last))
        return found
    # All ranks need the last stage's output, and sum what they send back.
    sums = run.links.all_reduce(
        layout.pp, 2 * run.tokens * run.shape.hidden, layout.gpus // layout.pp
    )
    for rank in range(layout.pp):
        early, late = rank, layout.stages - layout.pp + rank
        found[early] = total((found[early], _part(first, layout.pp)))
        found[late] = total((found[late], _part(last, layout.pp), Passes(sums, sums)))
    return found


def _part(passes: Passes, ranks: int) -> Passes:
    return Passes(passes.forward_s / ranks, passes.backward_s / ranks)


def layers_of_stages(layers: int, stages: int, head: float) -> list[int]:
    """Return how many layers each stage has: equally many, or, if that leaves a rest, balanced.

    Then the head, which costs ``head`` layers, takes their place on the last stage, and the
    embedding that of one on the first if there is a choice.

    Raises:
        ValueError: there are fewer layers than stages between the ends.
    """
    if layers < stages - 2:
        raise ValueError(f"{layers} layers are too few for {stages} stages")
    if layers % stages == 0:
        return [layers // stages] * stages
    most = -(-layers // stages)
    while most * (stages - 1) + _beside(head, most) < layers:
        most += 1
    last = _beside(head, most)
    each, more = divmod(layers - last, stages - 1)
    return [each + (stage >= stages - 1 - more) for stage in range(stages - 1)] + [last]


def _beside(head: float, most: int) -> int:
    """Return how many layers a stage of ``most`` layers' cost has beside the head."""
    return max(math.floor(most - head), 0)


def _mean_layer(run: Training) -> Passes:
    found = [(_block(run, block), count) for block, count in run.shape.blocks]
    forward, backward = (
        sum(each[place] * count for each, count in found) / run.shape.layers for place in (0, 1)
    )
    return Passes(forward, backward)


def _block(run: Training, block: Block) -> Passes:
    """Return the seconds of a block: device and host one after the other, or the slower one."""
    parts = [(layer, _layer(run, layer)) for layer in block]
    beside = total([Passes(), *(each for layer, each in parts if not _waits(layer))])
    after = total([Passes(), *(each for layer, each in parts if _waits(layer))])
    launch = run.launch_s
    return total(
        (
            _on_host(run, beside),
            Passes(
                after.forward_s + after.forward_launches * launch,
                after.backward_s + after.backward_launches * launch,
            ),
        )
    )


def _waits(layer: Layer) -> bool:
    return isinstance(layer, _SYNCHRONOUS)


def _on_host(run: Training, passes: Passes) -> Passes:
    """Return passes whose kernels a host launches ahead: they take as long as the slower one."""
    return Passes(
        max(passes.forward_s, passes.forward_launches * run.launch_s),
        max(passes.backward_s, passes.backward_launches * run.launch_s),
    )


def _layer(run: Training, layer: Layer) -> Passes:
    found = _PASSES[type(layer)](run, layer)
    again = run.layout.recompute == "everything" or (
        run.layout.recompute == "experts" and isinstance(layer, Experts)
    )
    if not again:
        return found
    return Passes(
        found.forward_s,
        found.backward_s + found.forward_s,
        found.forward_launches,
        found.backward_launches + found.forward_launches,
    )


_PASSES: Mapping[type, Callable[[Training, Any], Passes]] = {
    Attention: attention,
    LatentAttention: latent_attention,
    MLP: mlp,
    Experts: experts,
    Mamba: mamba,
}


def _transfers(run: Training) -> tuple[float, ...]:
    """Return the seconds of a microbatch's activation between stages, split over tp.

    Ranks are numbered by tp, cp, dp, then pp, as in Megatron-LM.
    """
    layout, node = run.layout, run.links.machine.node_gpus
    size = 2 * run.tokens * run.shape.hidden / layout.tp
    ranks = layout.gpus // layout.pp
    nodes = [stage % layout.pp * ranks // node for stage in range(layout.stages)]
    fits = ranks <= node
    return tuple(
        run.links.message(size, inside=fits and here == there) for here, there in pairwise(nodes)
    )
