"""The networks that stand for the papers', each small and large, with data held out.

All have eight parts with weights, so that pipelines of up to eight stages have something to train
in each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from experiments.study.training import he_initialised
from pipekit.choices import require_choice
from pipekit.datasets import Batch, Dataset, handwriting, masked
from pipekit.datasets.text import BYTES, MASK, installed_text, python_source
from pipekit.models import bert_large, gpt, token_loss

CLASSES = 10
SEGMENTS = 2  # a BERT's
PARTS = 8  # of every network, as many as there can be stages


@dataclass(frozen=True)
class Proxy:
    """A network and what it learns."""

    kind: str  # "gpt", "bert" or "images"
    size: str  # "small" to "huge", which is for a GPU
    width: int  # hidden features of a token, or channels of the first convolution
    length: int  # T, bytes of a row; or pixels of an image's side
    batch_rows: int  # examples of an update
    updates: int  # of a training
    rows: int = 0  # of text to learn from, windows; all images are learnt from
    test_rows: int = 0  # likewise to test on

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}"

    @property
    def setting(self) -> str:
        """Its name where results stand: with its updates, if they are not its own number."""
        own = PROXIES[self.name].updates
        return self.name if self.updates == own else f"{self.name}-{self.updates}"

    @property
    def description(self) -> str:
        """How large it is, and how much a training learns from, repeats included."""
        with torch.device("meta"):
            parameters = sum(each.numel() for each in self.build(0).parameters())
        count, unit = self.updates * self.batch_rows, "images"
        if self.kind != "images":
            count, unit = count * self.length, "bytes"
        return f"{parameters:,} parameters, {self.updates:,} updates, {count:,} {unit} seen"

    @property
    def loss(self) -> Callable[[Any, Any], Tensor]:
        """The loss, a mean over rows, in nats."""
        return nn.CrossEntropyLoss() if self.kind == "images" else token_loss

    @property
    def ends(self) -> frozenset[int]:
        """The sizes of what goes in and comes out, which no hidden matrix has."""
        if self.kind == "images":
            return frozenset({CLASSES})
        return frozenset({BYTES, MASK + 1, self.length, SEGMENTS})

    def build(self, seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        heads = max(1, self.width // 32)
        if self.kind == "images":
            return he_initialised(_convnet(self.width, self.length))
        if self.kind == "bert":
            return bert_large(PARTS - 2, self.width, heads, MASK + 1, self.length, dropout=0.0)
        return gpt(PARTS - 2, self.width, heads, BYTES, self.length)

    def balance(self, stages: int) -> list[int]:
        """Return how many layers each stage has, if all have as many of the parts as possible."""
        if not 1 <= stages <= PARTS:
            raise ValueError(
                f"{self.name} has {PARTS} parts: use 1 to {PARTS} stages, not {stages}"
            )
        layers = {"images": [2, 2, 2, 3, 2, 2, 2, 1], "gpt": [*[1] * 7, 2], "bert": [*[1] * 7, 4]}
        cuts = [PARTS * stage // stages for stage in range(stages + 1)]
        return [sum(layers[self.kind][a:b]) for a, b in pairwise(cuts)]

    def data(self) -> Dataset:
        return _data(replace(self, updates=0))


PROXIES: Mapping[str, Proxy] = {
    proxy.name: proxy
    for proxy in (
        Proxy("images", "small", width=8, length=12, batch_rows=32, updates=200),
        Proxy("images", "long", width=8, length=12, batch_rows=32, updates=1000),
        Proxy("gpt", "small", 32, 40, batch_rows=8, updates=300, rows=2400, test_rows=256),
        Proxy("bert", "small", 32, 40, batch_rows=8, updates=400, rows=3200, test_rows=256),
        # The large one's 7.6 million parameters, with updates that take a quarter of its rows.
        Proxy("gpt", "medium", 320, 128, batch_rows=4, updates=400, rows=64000, test_rows=128),
        Proxy("images", "large", width=64, length=28, batch_rows=64, updates=2000),
        Proxy("gpt", "large", 320, 128, 16, updates=4000, rows=64000, test_rows=512),
        Proxy("bert", "large", 320, 128, 16, updates=4000, rows=64000, test_rows=512),
        # For a GPU: 85 million parameters.
        Proxy("gpt", "huge", 1088, 256, 32, updates=8000, rows=300000, test_rows=512),
    )
}
"""By name."""


def of_setting(name: str) -> Proxy:
    """Return the proxy of a :attr:`Proxy.setting`: ``gpt-large-200`` is gpt-large, 200 updates."""
    own, _, updates = name.rpartition("-")
    if own in PROXIES and updates.isdigit():
        return replace(PROXIES[own], updates=int(updates))
    require_choice("proxy", name, list(PROXIES))
    return PROXIES[name]


def evaluate(model: nn.Module, proxy: Proxy, tests: Sequence[Batch]) -> float:
    """Return the mean loss over the rows of the test set, in nats."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        total = sum(float(proxy.loss(model(x.to(device)), y.to(device))) * len(x) for x, y in tests)
    model.train(was)
    return total / sum(len(x) for x, _ in tests)


@cache  # a process trains many
def _data(proxy: Proxy) -> Dataset:
    if proxy.kind == "images":
        return handwriting(proxy.length)
    text = python_source if proxy.size in ("small", "long") else installed_text
    windows = text(proxy.length, proxy.rows + proxy.test_rows, proxy.test_rows)
    return masked(windows) if proxy.kind == "bert" else windows


def _convnet(width: int, pixels: int) -> nn.Sequential:
    """Return four convolutions and four linear layers: ``[B, 1, p, p]`` to ``[B, 10]``."""
    hidden, left = 8 * width, (pixels + 3) // 4
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),  # [B, w, p, p]
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),  # [B, w, p/2, p/2]
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),  # [B, 2w, p/2, p/2]
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1, stride=2),  # [B, 2w, p/4, p/4]
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * left**2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )
