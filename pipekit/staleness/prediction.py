"""Weights that are predicted some updates ahead, from the step that the optimizer's state suggests.

W^ = W - s lr d: SpecTrain (Chen et al. 2018, eq. 4) has d of SGD, PipeOptim (Guan et al. 2023,
section III) that of any optimizer whose step its state gives without a new gradient.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from pipekit.staleness.mitigation import Mitigation, Pass, Weight


class Prediction(Mitigation):
    """Predicts weights by as many updates as a subclass says."""

    def ahead(self, at: Pass) -> int:
        """Return by how many updates a pass looks ahead, from the version that it reads."""
        raise NotImplementedError

    def require(self, optimizer: Optimizer) -> None:
        """Raise ValueError unless the optimizer's state gives its next step."""
        if not isinstance(optimizer, SGD | Adam):
            raise ValueError(
                f"the weights that {type(optimizer).__name__} will make cannot be predicted from "
                f"its state: use SGD with momentum, Adam or AdamW, or another mitigation"
            )
        for group in optimizer.param_groups:
            if isinstance(optimizer, SGD) and not group["momentum"]:
                raise ValueError(
                    "plain SGD keeps nothing to predict its next step from: give it momentum"
                )
            if group["maximize"] or group.get("amsgrad"):
                raise ValueError(
                    "weights are predicted with neither maximize=True nor amsgrad=True"
                )

    def weights(self, at: Pass, weight: Weight) -> Tensor:
        """Return W - s lr d."""
        steps, step = self.ahead(at), expected_step(weight)
        if not steps or step is None:
            return weight.read
        rate: float = steps * weight.options["lr"]
        return weight.read - rate * step


@dataclass(frozen=True)
class Ahead(Prediction):
    """Has both passes of a microbatch read weights that are predicted a number of updates ahead.

    With weight stashing: the prediction is made when the version is, from the optimizer's state of
    that moment, so that it depends on the version alone.  With 2BW, whose gradients are one update
    late, ``Ahead(1)`` is the natural choice.  No paper is known to us that does just this.

    Attributes:
        steps: how many updates.
    """

    steps: int = 1
    stashing = True

    def ahead(self, at: Pass) -> int:
        """Return the same for each pass."""
        return self.steps


def expected_step(weight: Weight) -> Tensor | None:
    """Return d, by which an update changes a parameter times the rate; None before the first one.

    SGD: its momentum buffer.  Adam, AdamW: m_hat / (sqrt(v_hat) + eps); weight decay is left out,
    as in the papers.
    """
    state, options = weight.state, weight.options
    if not state:
        return None
    if "momentum_buffer" in state:
        buffer: Tensor | None = state["momentum_buffer"]
        return buffer
    (beta1, beta2), count = options["betas"], float(state["step"])
    mean: Tensor = state["exp_avg"] / (1 - beta1**count)
    square: Tensor = state["exp_avg_sq"] / (1 - beta2**count)
    eps: float = options["eps"]
    return mean / (square.sqrt() + eps)
