"""Nesterov's method for asynchronous pipelines: NAdam with a long memory, on PipeDream.

Ajanthan et al., "Nesterov Method for Asynchronous Pipeline Parallel Optimization" (ICML 2025, arXiv
2505.01099): the momentum term looks ahead of the stale gradient, if it is large and the gradient's
own share, 1 - beta1, is small.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer


def nesterov(
    lr: float, beta1: float = 0.99, beta2: float = 0.999, weight_decay: float = 0.01
) -> Callable[[Any], Optimizer]:
    """Return what makes the paper's optimizer of a stage: NAdam with decoupled weight decay.

    For ``Pipeline(..., optimizer=nesterov(lr=3e-4))`` on ``schedules.pipedream``, with stashing.
    It is torch's NAdam, which the paper names, with torch's schedule of the momentum (it starts at
    half of ``beta1``).  The authors' code has 0.99, a rate of 3e-4 with warm-up and cosine decay,
    and clips gradients at 10.

    Args:
        lr: learning rate.
        beta1: of the momentum.
        beta2: of the squares.
        weight_decay: decoupled, as in AdamW.
    """
    return partial(
        torch.optim.NAdam,
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=weight_decay,
        decoupled_weight_decay=True,
    )
