"""Passes of an MLP on a rank, and of a mixture of them: router, all-to-all, grouped products
(Megatron-Core MoE; Shazeer et al., arXiv 1701.06538)."""

import math

from pipekit.performance.shapes import MLP, Experts
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup

_PERMUTE_BYTES = 8  # moved for each element to sort tokens by expert, and back
_ROUTER_BYTES = 40  # for each token's score of an expert: softmax, choice, counts, losses
_UNFUSED_BYTES = 48, 144
"""Moved for each element of an activation of several kernels in float32 (clamped SwiGLU)."""
_LAUNCHES, _EXPERT_LAUNCHES, _NARROW_LAUNCHES = 60, (2, 4), (6, 8)
"""Kernels of a layer; of each local expert; and of each whose operands are quantized as well."""
_GRAPHED_WAIT = 0.3  # of an all-to-all that is not hidden in a graph, beside other work
_LATENCY_S = 20e-6


def mlp(run: TrainingSetup, layer: MLP) -> PassCosts:
    """Return the passes of an MLP, its norm and residual included."""
    return run.sublayer(bare_mlp(run, layer), launches=run.framework.mlp_launches)


def bare_mlp(run: TrainingSetup, layer: MLP) -> PassCosts:
    """Return the passes of the products and of the activation between them."""
    hidden, width = run.shape.hidden, layer.width / run.layout.tp
    return total(
        run.kernels.linear(run.tokens, hidden, (1 + layer.gated) * width),
        run.kernels.linear(run.tokens, width, hidden),
        run.activation(run.tokens, width, layer.gated),
    )


def experts(run: TrainingSetup, layer: Experts) -> PassCosts:
    """Return the passes of a mixture whose experts have equal rows, norm and residual included."""
    tokens, hidden = run.tokens / run.layout.tp, run.shape.hidden
    inner = layer.latent or hidden
    rows, local = tokens * layer.active, layer.count / run.layout.ep
    parts = [
        run.kernels.linear(rows / local, inner, (1 + layer.gated) * layer.width, local),
        run.kernels.linear(rows / local, layer.width, inner, local),
        activations(run, layer),
        run.kernels.both(_PERMUTE_BYTES * rows * inner, _PERMUTE_BYTES * rows * inner),
        run.kernels.linear(tokens, hidden, layer.count, dtype="bfloat16"),
        run.kernels.both(*2 * (_ROUTER_BYTES * tokens * layer.count,)),
        _all_to_all(run, layer, tokens, inner),
        run.residual(),
    ]
    if layer.latent:
        parts += [
            run.kernels.linear(tokens, hidden, inner),
            run.kernels.linear(tokens, inner, hidden),
        ]
    if layer.shared_width:
        parts += [bare_mlp(run, MLP(layer.shared_width, layer.gated)), run.tensor_parallel()]
    narrow = run.dtype in ("float8", "float4")
    launches = (
        _LAUNCHES + local * each for each in (_NARROW_LAUNCHES if narrow else _EXPERT_LAUNCHES)
    )
    return total(*parts, PassCosts(0, 0, *launches))


def activations(run: TrainingSetup, layer: Experts) -> PassCosts:
    """Return the passes of what is between the products of all local experts."""
    rows = run.tokens / run.layout.tp * layer.active
    found = run.activation(rows, layer.width, layer.gated)
    if layer.fused_activation:
        return found
    more = [each * rows * layer.width for each in _UNFUSED_BYTES]
    return total(found, run.kernels.both(*more))


def _all_to_all(run: TrainingSetup, layer: Experts, tokens: float, inner: int) -> PassCosts:
    """Return the passes of tokens to their experts and back; a rank, or node, gets a token once.

    Of ``ep`` ranks k choices at random meet ep (1 - (1 - 1 / ep)^k).
    """
    ep, machine = run.layout.ep, run.links.machine
    if ep == 1:
        return PassCosts()

    def met(places: float) -> float:
        return places * (1 - (1 - 1 / places) ** layer.active) * (places - 1) / places

    size, inside = 2 * tokens * inner, run.links.node_rate
    seconds = size * met(ep) / inside
    if ep > machine.node_gpus:
        nodes = math.ceil(ep / machine.node_gpus)
        seconds = max(size * met(nodes) / run.links.rate(ep), size * met(ep) / inside)
    waited = 2 * (seconds + _LATENCY_S) * (_GRAPHED_WAIT if run.graphs else 1)
    return PassCosts(exchange_s=waited)
