"""Passes of what mixes tokens: attention, with what tensor and context parallelism add, latent
attention (DeepSeek-V2, section 2.1), and a Mamba-2 mixer (Dao and Gu, arXiv 2405.21060)."""

from pipekit.performance.shapes import Attention, LatentAttention, Mamba
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup

_FLASH, _FLASH_BACKWARD = 0.55, 0.5
"""Shares of the 2-byte peak that fused attention reaches (Shah et al., FlashAttention-3, arXiv
2407.08608, Figures 5 and 6); its backward computes the scores again: 2.5 times the work."""
_SCORE_BYTES = 4.5, 5.5  # for each score written out: scale, mask, softmax, dropout and its mask
_LATENT_LAUNCHES = 1.6  # latent attention's kernels, as a multiple: two more projections and norms
_CHUNK = 128
_SCAN_EFFICIENCY = 0.2  # of the 2-byte peak: chunks are small products (section 9.3)
_SCAN_BYTES = 48  # for each channel: convolution, chunk states, their passing, output
_SCAN_LAUNCHES = 25, 35


def attention(run: TrainingSetup, layer: Attention) -> PassCosts:
    """Return the passes of attention on a rank, its norm and residual included."""
    tp, tokens = run.layout.tp, run.tokens
    heads, kv_heads = layer.heads / tp, max(layer.kv_heads / tp, 1)
    width = layer.head_dim
    span = min(layer.window, run.seq_tokens) if layer.window else run.seq_tokens / 2
    forward, backward = run.framework.head_bytes
    elements = tokens * (heads + kv_heads) * width
    return run.sublayer(
        run.kernels.linear(tokens, run.shape.hidden, (heads + 2 * kv_heads) * width),
        _scores(run, heads, span, width, width),
        run.kernels.both(forward * elements, backward * elements),
        run.kernels.linear(tokens, heads * width, run.shape.hidden),
        _context_parallel(run, kv_heads * 2 * width),
        launches=run.framework.attention_launches,
    )


def latent_attention(run: TrainingSetup, layer: LatentAttention) -> PassCosts:
    """Return the passes of latent attention on a rank, its norm and residual included."""
    tp, tokens, hidden = run.layout.tp, run.tokens, run.shape.hidden
    heads, width = layer.heads / tp, layer.head_dim + layer.rope_dim
    ranks = layer.query_rank + layer.kv_rank
    norms = 2 * tokens / tp * ranks
    forward, backward = (each * _LATENT_LAUNCHES for each in run.framework.attention_launches)
    return run.sublayer(
        run.kernels.linear(tokens / tp, hidden, ranks + layer.rope_dim),
        up_projections(run, layer),
        run.kernels.both(2 * norms, 4 * norms),
        _scores(run, heads, run.seq_tokens / 2, width, layer.head_dim),
        run.kernels.linear(tokens, heads * layer.head_dim, hidden),
        _context_parallel(run, heads * (width + layer.head_dim)),
        launches=(forward, backward),
    )


def up_projections(run: TrainingSetup, layer: LatentAttention) -> PassCosts:
    """Return the passes from the low ranks to the heads, whose queries and keys are rotated."""
    tokens, heads, width = run.tokens, layer.heads / run.layout.tp, layer.head_dim + layer.rope_dim
    forward, backward = (each * 2 * tokens * heads * width for each in run.framework.head_bytes)
    return total(
        run.kernels.linear(tokens, layer.query_rank or run.shape.hidden, heads * width),
        run.kernels.linear(tokens, layer.kv_rank, heads * 2 * layer.head_dim),
        run.kernels.both(forward, backward),
    )


def _scores(run: TrainingSetup, heads: float, span: float, key: float, value: float) -> PassCosts:
    """Return the passes of queries against keys, and of scores against values."""
    if run.framework.flash_attention:
        flops = 2.0 * run.tokens * span * heads * (key + value)
        seconds = flops / run.links.machine.peak("bfloat16")
        return PassCosts(seconds / _FLASH, 2.5 * seconds / _FLASH_BACKWARD)
    seq, batch = run.seq_tokens, run.layout.microbatch_samples * heads
    products = run.kernels.product(seq, key, seq, batch) + run.kernels.product(
        seq, seq, value, batch
    )
    moved = [2 * batch * seq**2 * each for each in _SCORE_BYTES]
    return total(PassCosts(products, 2 * products), run.kernels.both(*moved))


def _context_parallel(run: TrainingSetup, width: float) -> PassCosts:
    """Return what ring attention does not hide of keys and values on their way around the ranks.

    Half of them forward; backward they go around with their gradients (Liu et al., Ring Attention,
    arXiv 2310.01889, section 3).
    """
    ranks = run.layout.cp
    if ranks == 1:
        return PassCosts()
    rate = run.links.rate(ranks, run.layout.tp)
    seconds = 2 * run.tokens * width * (ranks - 1) / rate
    return PassCosts(seconds / 2, seconds)


def mamba(run: TrainingSetup, layer: Mamba) -> PassCosts:
    """Return the passes of a mixer, its norm and residual included."""
    tp, tokens = run.layout.tp, run.tokens
    inner, states = layer.heads * layer.head_dim / tp, layer.groups * layer.state / tp
    flops = tokens * inner * (2 * _CHUNK + 6 * layer.state)
    scan = run.kernels.traffic(_SCAN_BYTES * tokens * (inner + 2 * states))
    scan += flops / (_SCAN_EFFICIENCY * run.links.machine.peak("bfloat16"))
    return run.sublayer(
        run.kernels.linear(tokens, run.shape.hidden, 2 * inner + 2 * states + layer.heads / tp),
        run.kernels.linear(tokens, inner, run.shape.hidden),
        PassCosts(scan, 2.5 * scan),
        launches=_SCAN_LAUNCHES,
    )
