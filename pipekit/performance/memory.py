"""Bytes of each pipeline rank at its peak: states of its weights, and activations in flight.

Activations are those of Korthikanti et al., Reducing Activation Recomputation in Large Transformer
Models (arXiv 2205.05198, section 4), layer by layer; a product keeps its input in its own dtype
(DeepSeek-V3, arXiv 2412.19437, section 3.3.3).
"""

from pipekit.performance.layout import ParallelLayout, Recompute
from pipekit.performance.predict import stage_layers
from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, Layer, Mamba
from pipekit.performance.step import in_flight
from pipekit.performance.terms.kernels import BYTES
from pipekit.performance.terms.replicas import weights
from pipekit.performance.terms.vocabulary import vocabulary
from pipekit.performance.training import TrainingSetup

_SCORE_BYTES = 5  # of each score that is written out: softmax, dropout's mask, and what it leaves


def peak_bytes(run: TrainingSetup) -> list[float]:
    """Return the largest allocated bytes of each pipeline rank."""
    layout = run.layout
    counts = stage_layers(run)
    microbatches = in_flight(layout.method, layout.stages, layout.microbatches, layout.pp)
    whole, kept = _mean_kept(run, "nothing"), _mean_kept(run, layout.recompute)
    # ZeRO 3 has the layer that runs whole, and the next one's weights and gradients (Zhao et al.,
    # PyTorch FSDP, arXiv 2304.11277, 3.3.2).
    layer = zip(weights(run, 1, 0), _replicas(layout), strict=True)
    spread = sum(size for size, replicas in layer if replicas > 1 and layout.zero == 3)
    gathered = 2 * spread * (2 + run.framework.gradients_held)
    found = []
    for rank in range(layout.pp):
        layers = sum(counts[rank :: layout.pp])
        flying = microbatches[rank] + layout.overlaps_experts  # that runs beside another one
        activations = flying * layers / layout.chunks * kept
        again = whole - kept  # of the layer whose forward runs again
        first, last, tied = rank == 0, rank == layout.pp - 1, run.shape.tied
        tables, head = float(first + (last and not (tied and layout.pp == 1))), float(last)
        if layout.spreads_vocabulary:
            tables, head = (2 - tied) / layout.pp, 1 / layout.pp
        logits = head * run.framework.logit_held * run.tokens * vocabulary(run)
        found.append(_states(run, layers, tables) + gathered + activations + again + logits)
    return found


def _states(run: TrainingSetup, layers: int, tables: float) -> float:
    """Return bytes of weights, gradients and optimizer states, sharded by ZeRO's stage.

    Weights that are not trained have neither gradients nor states; their adapters are small.
    """
    layout, framework = run.layout, run.framework
    trained = framework.states_held, framework.gradients_held
    sizes = (*(trained if run.trains_weights else (0.0, 0.0)), 2.0)
    # Between a pipeline's microbatches whole weights and gradients stay beside shards (FSDP).
    whole = sum(sizes[1 : max(layout.zero, 1)]) if layout.pp > 1 else 0

    def held(count: float, replicas: int) -> float:
        shares = (
            size / (replicas if layout.zero > number else 1) for number, size in enumerate(sizes)
        )
        return count * (sum(shares) + whole * (replicas > 1))

    return sum(map(held, weights(run, layers, tables), _replicas(layout)))


def _replicas(layout: ParallelLayout) -> tuple[int, int]:
    """Return how many ranks hold the same experts, and the same of all other weights."""
    return layout.expert_replicas, layout.dp * layout.cp


def _mean_kept(run: TrainingSetup, rule: Recompute) -> float:
    """Return bytes that a mean layer keeps of a microbatch between its passes."""
    # A layer's input has 2 bytes an element, and is split over tp if sequences are.
    split = run.layout.tp if run.framework.sequence_parallel else 1
    first = 2 * run.tokens * run.shape.hidden / split
    if rule == "everything":
        return first
    normed = 0.0  # and masked; norms are computed again
    if rule not in ("selective", "activations"):
        normed = _narrow(run) + run.framework.mask_held / 2
    kept = 0.0
    for layer, count in run.shape.each_layer():
        if rule == "experts" and isinstance(layer, Experts):
            kept += count * first
            continue
        inside = _inside(run, layer, rule == "selective")
        if rule == "activations" and isinstance(layer, Experts):
            inside -= layer.active * layer.width * _narrow(run)
        elif rule == "activations" and isinstance(layer, LatentAttention):
            inside -= layer.heads * (3 * layer.head_dim + 2 * layer.rope_dim)
        kept += count * (first * (1 + normed) + 2 * run.tokens * inside / run.layout.tp)
    return kept / run.shape.layers


def _narrow(run: TrainingSetup) -> float:
    """Return the bytes of a product's input beside those of an element of 2 bytes, at most 1."""
    return min(BYTES[run.dtype] / 2, 1.0)


def _inside(run: TrainingSetup, layer: Layer, selective: bool) -> float:
    """Return elements of 2 bytes that each token leaves inside a layer, on all tp ranks."""
    narrow = _narrow(run)
    copied = narrow if narrow < 1 else 0.0  # attention's output, which attention keeps itself
    match layer:
        case Attention():
            scores = 0.0 if run.framework.flash_attention else _SCORE_BYTES / 2 * run.seq_tokens
            products = layer.heads + 2 * layer.kv_heads
            kept = layer.head_dim * (layer.heads * (1 + copied) + products / (1 + selective))
            return kept + layer.heads * scores
        case LatentAttention():
            width = (4 + copied) * layer.head_dim + 2 * layer.rope_dim
            return float(layer.heads * width + layer.query_rank + layer.kv_rank)
        case MLP():
            each = (1 + layer.gated) / 2 if selective else 1 + layer.gated + narrow
            return layer.width * each
        case Experts():
            inner = layer.latent or run.shape.hidden
            each, shared = (
                _inside(run, MLP(width, layer.gated), selective)
                for width in (layer.width, layer.shared_width)
            )
            return layer.active * ((1 + narrow) * inner + each) + shared
        case Mamba():
            return 3.0 * layer.heads * layer.head_dim + 2 * layer.groups * layer.state
