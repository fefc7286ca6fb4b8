"""Basis rotation: Adam in the eigenbasis of the curvature, where late steps still point downhill.

Jung, Shin and Lee, "Mitigating Staleness in Asynchronous Pipeline Parallelism via Basis Rotation"
(ICML 2026, arXiv 2602.03515), algorithms 1 and 2.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class BasisRotation(Optimizer):
    """Adam, whose second moments are those of rotated gradients, for each matrix of weights.

    With G the gradient of W [m, n]:

    - M <- beta1 M + (1 - beta1) G;
    - every ``every`` steps one power iteration: U <- qr(L U), V <- qr(R V), with L and R running
      means (beta2) of G G^T and G^T G;
    - S <- beta2 S + (1 - beta2) (U^T G V)^2;
    - W <- W - lr U (U^T M V / sqrt(S + eps)) V^T.

    U and V begin as the identity, of which the summary of the paper that was at hand says nothing;
    nor does it name corrections of the means' bias, and there are none.  What is no matrix is
    rotated by nothing.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: of the means of gradients, and of squares.
        eps: below the root.
        weight_decay: decoupled.
        every: steps from one power iteration to the next.

    Raises:
        ValueError: ``every`` is below 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        every: int = 10,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 step, not {every}")
        how = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "every": every}
        super().__init__(params, how)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, weight: Tensor, gradient: Tensor, options: dict[str, Any]) -> None:
        state: dict[str, Any] = self.state[weight]
        (beta1, beta2), lr = options["betas"], options["lr"]
        sides = (0, 1) if weight.dim() == 2 else ()  # of its rows, and of its columns
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
            for side in sides:
                basis = torch.eye(weight.shape[side], dtype=weight.dtype, device=weight.device)
                state[f"basis_{side}"] = basis
                state[f"curvature_{side}"] = torch.zeros_like(basis)
        mean = state["exp_avg"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        for side in sides:
            square = gradient.T @ gradient if side else gradient @ gradient.T
            curvature = state[f"curvature_{side}"].mul_(beta2).add_(square, alpha=1 - beta2)
            if state["step"] % options["every"] == 0:
                source = curvature @ state[f"basis_{side}"]
                state[f"basis_{side}"] = torch.linalg.qr(source).Q
        rotated = _rotated(gradient, state)
        state["exp_avg_sq"].mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        step = _rotated(mean, state) / (state["exp_avg_sq"] + options["eps"]).sqrt()
        weight.mul_(1 - lr * options["weight_decay"])
        weight.sub_(lr * _rotated(step, state, back=True))
        state["step"] += 1


def _rotated(matrix: Tensor, state: dict[str, Any], back: bool = False) -> Tensor:
    """Return U^T A V, or U A V^T if ``back``; what is no matrix stays."""
    if "basis_0" not in state:
        return matrix
    left: Tensor = state["basis_0"]
    right: Tensor = state["basis_1"]
    return left @ matrix @ right.T if back else left.T @ matrix @ right
