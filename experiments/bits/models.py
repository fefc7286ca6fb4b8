"""The models of the cases, with their data and losses; all batches have ``ROWS`` rows."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pipekit as pk

ROWS, WIDTH, OUT, WORDS = 32, 6, 3, 11
PADDING = -100


class Stash(pk.skips.Skippable):
    """Leaves what comes in for a layer far behind."""

    stashes = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", x)
        return 2 * x


class Pop(pk.skips.Skippable):
    """Adds what was left."""

    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pop("skip")


class Reads(nn.Module):
    """Words and a mask in, scores of words out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = x + self.drop(block(x)) * mask[..., None]
        scores: Tensor = self.head(x)
        return scores


def mixed(stages: int, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    """Dropout, batch norm, a layer in place."""
    layers: list[nn.Module] = []
    for stage in range(stages):
        between = nn.ReLU(inplace=True) if stage % 2 else nn.Dropout(0.3)
        layers += nn.Linear(WIDTH, WIDTH), between, norm(WIDTH)
    return ended(layers)


def tanh(stages: int) -> nn.Sequential:
    """Without batch norm, so that a microbatch may have one row."""
    return ended(layer for _ in range(stages) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))


def ended(layers: Iterable[nn.Module]) -> nn.Sequential:
    """Return layers with the last one replaced by one of fewer columns."""
    return nn.Sequential(*[*layers][:-1], nn.Linear(WIDTH, OUT))


def tied(stages: int) -> nn.Sequential:
    """The first and the last stage share a weight."""
    model = tanh(stages)
    model[2 * stages - 2].weight = model[0].weight
    return model


def skipping(stages: int) -> nn.Sequential:
    """A tensor goes from the first stage to the last."""
    plain = tanh(stages)
    return nn.Sequential(plain[0], Stash(), *plain[2:-2], Pop(), plain[-1])


def recorded(stages: int) -> nn.Module:
    """Any module, as layers."""
    words = {"words": torch.zeros(2, 5, dtype=torch.long), "mask": torch.ones(2, 5)}
    return pk.stages(Reads(), words)


def rows(last: int = ROWS) -> tuple[Tensor, Tensor]:
    return torch.randn(last, WIDTH), torch.randn(last, OUT)


def texts(last: int = ROWS) -> dict[str, Any]:
    words = torch.randint(WORDS, (last, 5))
    mask = torch.rand(last, 5) < 0.7
    labels = words.roll(1, 1).masked_fill(~mask, PADDING)
    return {"words": words, "mask": mask.float(), "labels": labels, "task": "copy"}


def word_loss(scores: Tensor, batch: Any, reduction: str = "mean") -> Tensor:
    labels = batch["labels"].flatten()
    return F.cross_entropy(scores.flatten(0, 1), labels, ignore_index=PADDING, reduction=reduction)


class Model(NamedTuple):
    """A model of so many stages, a batch, and a loss."""

    of: Callable[[int], Any]
    batch: Callable[..., Any] = rows
    loss: Any = nn.MSELoss()


MIXED = Model(mixed)
DEFERRED = Model(partial(mixed, norm=pk.DeferredBatchNorm))
TANH = Model(tanh)
TIED = Model(tied)
SKIPPING = Model(skipping)
DICTS = Model(recorded, texts, word_loss)
PADDED = DICTS._replace(
    loss=pk.MeanOver(
        partial(word_loss, reduction="sum"), lambda batch: (batch["labels"] != PADDING).sum()
    )
)
