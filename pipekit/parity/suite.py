"""The models that a trainer is judged on, each with its batches and its loss.

Every model is an ``nn.Sequential`` whose slices keep the parameters' names.  Two attributes come
with it: ``model.loss(output, target)``, a mean, and ``model.count(target)``, its number of terms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, CLASSES, LENGTH, DEPTH = 16, 12, 6, 14
ROWS = 240  # of a batch: most numbers of microbatches divide it
IGNORED = -100
AUXILIARY = 0.1  # weight of the loss that balances experts
SEED = 20_240

Batch = tuple[Tensor, Tensor]


class Layers(nn.Sequential):
    """Layers in order; a slice that is called with two tensors passes them on as one tuple."""

    def forward(self, *values: Any) -> Any:
        value = values[0] if len(values) == 1 else values
        for layer in self:
            value = layer(value)
        return value


class Residual(nn.Module):
    """``x + tanh(norm(linear(x))) / 2``, ``[..., WIDTH]`` in and out."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), norm or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, torch.tanh(self.norm(self.linear(x))), alpha=0.5)


class Open(nn.Module):
    """Begins a second tensor: ``x`` becomes ``(x, x)``, or ``(x, zeros [B, 1])``."""

    def __init__(self, zeros: bool = False) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x[:, :1] * 0 if self.zeros else x


class Beside(nn.Module):
    """Applies a layer to the first of two tensors, and passes the second on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.layer(pair[0]), pair[1]


class Close(nn.Module):
    """Ends a skip: a linear layer of both tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tanh(self.linear(torch.cat(pair, dim=-1)))


class Experts(nn.Module):
    """The likelier of two experts for each row, and an auxiliary loss that balances them.

    The auxiliary loss, experts * sum of (share of rows * mean probability; Switch Transformer,
    arXiv 2101.03961, section 2.2), is of the rows that go through together; each row carries what
    layers so far have added up: ``(x [B, WIDTH], auxiliary [B, 1])`` in and out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, auxiliary = pair
        chances = self.router(x).softmax(-1)  # [B, 2]
        chosen = F.one_hot(chances.argmax(-1), 2).to(x.dtype)
        inner = torch.stack([expert(x) for expert in self.experts], -1)  # [B, WIDTH, 2]
        balance = AUXILIARY * 2 * (chosen.mean(0) * chances.mean(0)).sum()
        x = x + torch.tanh((inner * (chosen * chances)[:, None]).sum(-1)) / 2
        return x, auxiliary + balance


def loss(output: Any, target: Tensor) -> Tensor:
    """Return the mean cross entropy, and the auxiliary loss where there is one."""
    logits, *auxiliary = output if isinstance(output, tuple) else (output,)
    labels, scores = target.flatten(), logits.flatten(0, -2)
    mean = F.cross_entropy(scores, labels, ignore_index=IGNORED)
    return sum((each.mean() for each in auxiliary), mean)


def _model(*inside: nn.Module, first: nn.Module | None = None, last: Any = None) -> list[nn.Module]:
    return [first or nn.Linear(WIDTH, WIDTH), *inside, last or nn.Linear(WIDTH, CLASSES)]


def _residual(layers: int, norm: Callable[[], nn.Module | None] = lambda: None) -> list[nn.Module]:
    return [Residual(norm()) for _ in range(layers)]


def _tied() -> list[nn.Module]:
    embedding = nn.Embedding(CLASSES, WIDTH)
    nn.init.normal_(embedding.weight, std=WIDTH**-0.5)
    inside, head = _residual(DEPTH), nn.Linear(WIDTH, CLASSES, bias=False)
    head.weight = embedding.weight
    return _model(*inside, first=embedding, last=head)


def _skips() -> list[nn.Module]:
    inside = [Beside(layer) for layer in _residual(DEPTH - 4)]
    first, last = _residual(2)
    return _model(first, Open(), *inside, Close(), last)


def _frozen() -> list[nn.Module]:
    layers = _model(*_residual(DEPTH))
    for number in (0, 1, DEPTH // 2):
        layers[number].requires_grad_(False)
    return layers


@dataclass(frozen=True)
class Case:
    """A model of the suite."""

    layers: Callable[[], list[nn.Module]]  # makes its layers
    tokens: bool = False  # whether rows are ``[LENGTH]`` tokens, not ``[WIDTH]`` numbers
    ignored: bool = False  # whether labels are ignored, in every row another number of them
    tuples: bool = False  # whether some layers hand on two tensors
    odd: bool = False  # whether no number of microbatches divides the rows
    coupled: bool = False  # whether a row's output depends on the rows that go through with it
    random: bool = False  # whether it draws random numbers

    def model(self) -> nn.Sequential:
        """Return the model with the judge's weights, the same in every process."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = (Layers if self.tuples else nn.Sequential)(*self.layers())
        model.loss, model.count = loss, count  # type: ignore[assignment]
        return model

    def batches(self, steps: int, microbatches: int | None) -> list[Batch]:
        """Return batches of inputs and targets whose rows the microbatches divide, unless odd."""
        least = microbatches or 1
        rows = 4 * max(least, 13) + 1 if self.odd else least * ceil(ROWS / least)
        random = torch.Generator().manual_seed(SEED + 1)
        return [self._batch(rows, random) for _ in range(steps)]

    def _batch(self, rows: int, random: torch.Generator) -> Batch:
        if not self.tokens:
            x = torch.randn(rows, WIDTH, generator=random)
            return x, torch.randint(CLASSES, (rows,), generator=random)
        x = torch.randint(CLASSES, (rows, LENGTH), generator=random)
        target = torch.randint(CLASSES, (rows, LENGTH), generator=random)
        if self.ignored:
            lengths = torch.randint(1, LENGTH + 1, (rows, 1), generator=random)
            target[torch.arange(LENGTH) >= lengths] = IGNORED
        return x, target


def count(target: Tensor) -> int:
    """Return how many labels count in a target: all that are not ignored."""
    return int((target != IGNORED).sum())


SUITE = {
    "dense": Case(lambda: _model(*_residual(DEPTH))),
    "tied": Case(_tied, tokens=True),
    "skips": Case(_skips, tuples=True),
    "batch-norm": Case(
        lambda: _model(*_residual(DEPTH, lambda: nn.BatchNorm1d(WIDTH))), coupled=True
    ),
    "moe": Case(
        lambda: _model(
            Open(zeros=True),
            *(Experts() for _ in range(DEPTH - 1)),
            last=Beside(nn.Linear(WIDTH, CLASSES)),
        ),
        tuples=True,
        coupled=True,
    ),
    "frozen": Case(_frozen),
    "tokens": Case(
        lambda: _model(*_residual(DEPTH), first=nn.Embedding(CLASSES, WIDTH)),
        tokens=True,
        ignored=True,
    ),
    "odd": Case(lambda: _model(*_residual(DEPTH)), odd=True),
    "dropout": Case(
        lambda: _model(*_residual(DEPTH, lambda: nn.Dropout(0.1))), coupled=True, random=True
    ),
}
"""The models by name."""
