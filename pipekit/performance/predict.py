"""A training becomes a step: the terms of each stage, dealt out and replayed by a table."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pipekit.performance.layout import beside_head
from pipekit.performance.shapes import MLP, Attention, Block, Experts, LatentAttention, Layer, Mamba
from pipekit.performance.step import TrainingStep
from pipekit.performance.terms import replicas
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.terms.mixers import attention, latent_attention, mamba, up_projections
from pipekit.performance.terms.mlp import activations, experts, mlp
from pipekit.performance.terms.vocabulary import embedding, head
from pipekit.performance.training import TrainingSetup

_SYNCHRONOUS = Experts, Mamba
"""Layers whose host waits for the device: it reads how many tokens each expert has, or its
launches follow no long product that they could hide behind."""
_TAKEN_BY_MESSAGES = 20 / 132  # of the multiprocessors: DeepEP's 20 of an H100's


def step(run: TrainingSetup) -> TrainingStep:
    """Return the step of a training; ValueError if the layout does not suit the model."""
    layout, (layer, first, last) = run.layout, _costs(run)
    passes = [layer.scaled(count) for count in stage_layers(run)]
    if layout.spreads_vocabulary:
        # All ranks need the last stage's output, and sum what they send back.
        size, stride = 2 * run.tokens * run.shape.hidden, layout.gpus // layout.pp
        sums = run.links.all_reduce(layout.pp, size, stride)
        first, last = first.scaled(1 / layout.pp), last.scaled(1 / layout.pp)
        for rank in range(layout.pp):
            late = rank - layout.pp
            passes[rank] = total(passes[rank], first)
            passes[late] = total(passes[late], last, PassCosts(sums, sums))
    else:
        passes[0] = total(passes[0], first)
        passes[-1] = total(passes[-1], last)
    made = TrainingStep(
        tuple(each.forward_s for each in passes),
        tuple(each.backward_s for each in passes),
        layout.microbatches,
        transfer_s=_transfers(run),
        method=layout.method,
        workers=layout.pp,
    )
    return replace(made, after_s=replicas.seconds(run, max(made.busy_s)))


def stage_layers(run: TrainingSetup) -> list[int]:
    """Return how many layers each stage has, by what the head costs; see :func:`.beside_head`."""
    layer, _, last = _costs(run)
    head_layers = (last.forward_s + last.backward_s) / (layer.forward_s + layer.backward_s)
    here = 0 if run.layout.spreads_vocabulary else head_layers
    return beside_head(run.shape.layers, run.layout.stages, here)


def _costs(run: TrainingSetup) -> tuple[PassCosts, PassCosts, PassCosts]:
    """Return the passes of a mean layer, of the embedding, and of heads and blocks that predict."""
    # What does not count for them is the same, so that few are computed.
    layout = replace(run.layout, pp=1, dp=run.layout.ep, chunks=1, microbatches=1, zero=0)
    return _costs_of_part(replace(run, layout=layout))


@lru_cache(maxsize=4096)
def _costs_of_part(run: TrainingSetup) -> tuple[PassCosts, PassCosts, PassCosts]:
    every = total(*(_block(run, block).scaled(count) for block, count in run.shape.blocks))
    layer, predictors = every.scaled(1 / run.shape.layers), run.shape.predictors
    last = total(*[_on_host(run, head(run))] * (1 + predictors), *[layer] * predictors)
    return layer, _on_host(run, embedding(run)), last


def _block(run: TrainingSetup, block: Block) -> PassCosts:
    """Return the seconds of a block: device and host one after the other, or the slower one."""
    beside, after = [PassCosts()], [PassCosts()]
    for layer in block:
        (after if isinstance(layer, _SYNCHRONOUS) else beside).append(_layer(run, layer))
    device, launch = total(*after), run.launch_s
    forward = device.forward_s + device.forward_launches * launch
    backward = device.backward_s + device.backward_launches * launch
    passes = total(_on_host(run, total(*beside)), PassCosts(forward, backward))
    waited = device.exchange_s
    if run.layout.overlaps_experts:
        mean_s = (passes.forward_s + passes.backward_s) / 2
        waited = max(waited - replicas.HIDDEN * mean_s, waited * _TAKEN_BY_MESSAGES)
    return total(passes, PassCosts(waited, waited))


def _on_host(run: TrainingSetup, passes: PassCosts) -> PassCosts:
    """Return passes whose kernels a host launches ahead: they take as long as the slower one."""
    return PassCosts(
        max(passes.forward_s, passes.forward_launches * run.launch_s),
        max(passes.backward_s, passes.backward_launches * run.launch_s),
    )


def _layer(run: TrainingSetup, layer: Layer) -> PassCosts:
    found, rule = _PASSES[type(layer)](run, layer), run.layout.recompute
    if rule == "activations":
        again = run.residual().forward_s
        if isinstance(layer, Experts):
            again += activations(run, layer).forward_s
        elif isinstance(layer, LatentAttention):
            again += up_projections(run, layer).forward_s
        return found._replace(backward_s=found.backward_s + again)
    share = {"selective": 0.5, "everything": 1.0, "experts": float(isinstance(layer, Experts))}
    again = share.get(rule, 0.0)
    return found._replace(
        backward_s=found.backward_s + again * (found.forward_s + found.exchange_s),
        backward_launches=found.backward_launches + again * found.forward_launches,
    )


_PASSES: Mapping[type, Callable[[TrainingSetup, Any], PassCosts]] = {
    Attention: attention,
    LatentAttention: latent_attention,
    MLP: mlp,
    Experts: experts,
    Mamba: mamba,
}


def _transfers(run: TrainingSetup) -> tuple[float, ...]:
    """Return the seconds of a microbatch's activation between stages, split over tp.

    Ranks are numbered by tp, cp, dp, then pp, as in Megatron-LM.
    """
    layout, node = run.layout, run.links.machine.node_gpus
    size = 2 * run.tokens * run.shape.hidden / layout.tp
    ranks = layout.gpus // layout.pp
    first = [stage % layout.pp * ranks for stage in range(layout.stages)]
    return tuple(
        run.links.message(size, inside=ranks <= node and here // node == there // node)
        for here, there in pairwise(first)
    )
