"""The user's adapter: three methods around a trainer, and what it may state about itself."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.parity.suite import Batch


class Adapter(Protocol):
    """A trainer as the judge sees it; one is made in each process."""

    def build(
        self, model: nn.Sequential, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    ) -> None:
        """Take the model, with the judge's weights, and a function that makes a plain SGD."""

    def step(self, batch: Batch) -> float | None:
        """Train on one whole batch, update once, and return the loss where this rank has it."""

    def parameters(self) -> Mapping[str, Tensor]:
        """Return what this rank holds, by the model's names; buffers may be among it."""


@dataclass(frozen=True)
class Stated:
    """What an adapter may state by attributes of these names.

    Attributes:
        microbatches: of a batch; without it all divisors of the rows are tried.
        stages: of the pipeline; without it the ranks count.
        balance: how many of the model's layers each stage has.
        stale: the most updates that gradients are behind by design.
        clip_norm: the norm of all gradients to which the trainer clips by design.
    """

    microbatches: int | None = None
    stages: int | None = None
    balance: tuple[int, ...] | None = None
    stale: int = 0
    clip_norm: float | None = None

    @classmethod
    def by(cls, adapter: Any) -> "Stated":
        """Return what an adapter states; raises ValueError for what is no such number."""
        found: dict[str, Any] = {f.name: getattr(adapter, f.name, f.default) for f in fields(cls)}
        for name in ("microbatches", "stages", "stale"):
            least = 0 if name == "stale" else 1
            if found[name] is not None and (type(found[name]) is not int or found[name] < least):
                raise ValueError(
                    f"the adapter's {name} is {found[name]!r}: state a whole number from {least}"
                )
        if found["balance"] is not None:
            found["balance"] = tuple(found["balance"])
            found["stages"] = len(found["balance"])
        return cls(**found)
