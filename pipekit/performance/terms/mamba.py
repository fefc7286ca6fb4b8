"""Passes of a Mamba-2 mixer (Dao and Gu, arXiv 2405.21060): projections and a chunked scan."""

from pipekit.performance.shapes import Mamba
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup

_CHUNK = 128
_SCAN_EFFICIENCY = 0.2
"""Of the 2-byte peak: chunks of 128 tokens are small products (section 9.3 of the paper)."""
_SCAN_BYTES = 48
"""Moved for each channel: convolution, chunk states, their passing and output, a kernel each."""
_LAUNCHES = 25, 35


def mamba(run: TrainingSetup, layer: Mamba) -> PassCosts:
    """Return the passes of a mixer, its norm and residual included."""
    tp, tokens = run.layout.tp, run.tokens
    inner, states = layer.heads * layer.head_dim / tp, layer.groups * layer.state / tp
    flops = tokens * inner * (2 * _CHUNK + 6 * layer.state)
    scan = run.kernels.traffic(_SCAN_BYTES * tokens * (inner + 2 * states))
    scan += flops / (_SCAN_EFFICIENCY * run.links.machine.peak("bfloat16"))
    return total(
        (
            run.kernels.linear(tokens, run.shape.hidden, 2 * inner + 2 * states + layer.heads / tp),
            run.kernels.linear(tokens, inner, run.shape.hidden),
            PassCosts(scan, 2.5 * scan),
            run.tensor_parallel(),
            run.residual(),
            PassCosts(0, 0, *_LAUNCHES),
        )
    )
