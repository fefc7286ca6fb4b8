"""The learning rates that a training goes through."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def learning_rates(optimizer: Optimizer, scheduler: LRScheduler, steps: int) -> list[float]:
    """Return the rate before each step of the first parameter group."""
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates
