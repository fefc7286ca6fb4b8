"""How PipeDream-2BW's authors trained their language models, as data (section 5.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pipekit import Updates


@dataclass(frozen=True)
class AdamRecipe:
    """Adam with a learning rate that warms up and then decays, both linearly.

    What the paper does not print is Megatron's (Shoeybi et al., 2019, section 4), whose
    hyperparameters it says it uses. A batch has ``batch_rows`` sequences of ``sequence`` tokens;
    ``lr`` is the greatest learning rate, after a ``warm_up`` that is a share of the steps; biases
    and norms have no weight decay; ``clip_norm`` is the greatest norm of an update's gradient.
    """

    batch_rows: int
    steps: int
    lr: float = 1e-4
    sequence: int = 512
    warm_up: float = 0.01
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    data: str = "OpenWebText"
    precision: str = "mixed precision"

    def optimizer(self, parameters: list[nn.Parameter]) -> AdamW:
        """Return the optimizer of a stage's parameters."""
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return AdamW([group for group in groups if group["params"]], lr=self.lr)

    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Return what sets the learning rate; stepped after each update, as the engine does."""
        return LambdaLR(optimizer, self.share_of_lr)

    @property
    def updates(self) -> dict[str, Any]:
        """Arguments of the oracle that say how weights are updated."""
        made = {"optimizer": self.optimizer, "lr_scheduler": self.scheduler}
        return {**made, "clip_norm": self.clip_norm}

    @property
    def of_pipeline(self) -> dict[str, Any]:
        """The same as arguments of a pipeline."""
        updates = Updates(lr_scheduler=self.scheduler, clip_norm=self.clip_norm)
        return {"optimizer": self.optimizer, "updates": updates}

    def share_of_lr(self, step: int) -> float:
        """Return by what the greatest learning rate is multiplied after ``step`` updates."""
        warm_up = max(1, round(self.warm_up * self.steps))
        return min((step + 1) / warm_up, (self.steps - step) / max(1, self.steps - warm_up))


PRE_TRAINING: Mapping[str, AdamRecipe] = MappingProxyType(
    {
        "bert": AdamRecipe(1024, steps=2_000_000, warm_up=0.005),
        "gpt": AdamRecipe(512, steps=300_000, warm_up=0.01),
    }
)
"""By model; steps and warm-up are Megatron's, since the paper prints neither."""


def describe(trainings: Mapping[str, AdamRecipe]) -> str:
    """Return in one line what section 5.1's trainings have in common, or refuse others."""
    common = {(t.lr, t.sequence, t.precision, t.data) for t in trainings.values()}
    if len(common) > 1:
        raise ValueError(f"the trainings differ in more than batch and steps: {common}")
    ((lr, sequence, precision, data),) = common
    batches = ", ".join(f"{name.upper()} {t.batch_rows}" for name, t in trainings.items())
    rate = f"{lr:.0e}".replace("e-0", "e-")
    return (
        f"Adam lr {rate}, warm-up + linear decay; batch {batches}; seq {sequence}; {precision}; "
        f"{data}"
    )
