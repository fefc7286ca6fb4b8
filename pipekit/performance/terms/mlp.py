"""Passes of an MLP on a rank: its two or three products and what is between them."""

from pipekit.performance.shapes import MLP
from pipekit.performance.terms.kernels import PassCosts, total
from pipekit.performance.training import TrainingSetup


def mlp(run: TrainingSetup, layer: MLP) -> PassCosts:
    """Return the passes of an MLP, its norm and residual included."""
    return total(
        (
            bare_mlp(run, layer),
            run.tensor_parallel(),
            run.residual(),
            PassCosts(0, 0, *run.framework.mlp_launches),
        )
    )


def bare_mlp(run: TrainingSetup, layer: MLP) -> PassCosts:
    """Return the passes of the products and of the activation between them."""
    hidden, width = run.shape.hidden, layer.width / run.layout.tp
    return total(
        (
            run.kernels.linear(run.tokens, hidden, (1 + layer.gated) * width),
            run.kernels.linear(run.tokens, width, hidden),
            run.activation(run.tokens, width, layer.gated),
        )
    )
