"""What tests of the oracle train: one network, and optimizers of each kind."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from pipekit import oracle
from pipekit.oracle import OracleRun

PIPEDREAM = ["pipedream", "pipedream_vertical_sync", "pipedream_no_stashing"]
SEQUENTIAL = ["sequential", "model_parallel", "gpipe", "flush"]

Factory = Callable[[list[nn.Parameter]], Optimizer]
Batches = list[tuple[Any, Any]]

OPTIMIZERS: dict[str, Factory] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "rmsprop": lambda p: RMSprop(p, lr=0.01),
}


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name], expected[name]), name


def same_weights(one: OracleRun, other: OracleRun) -> bool:
    pairs = zip(one.weights, other.weights, strict=True)
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(16, 5),
    )


def images(count: int = 5, rows: int = 10) -> Batches:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(rows, 2, 6, 6, generator=generator),
            torch.randint(5, (rows,), generator=generator),
        )
        for _ in range(count)
    ]


def train(method: str, balance: list[int], **options: Any) -> OracleRun:
    defaults: dict[str, Any] = {"optimizer": OPTIMIZERS["adam"], "loss": nn.CrossEntropyLoss()}
    model = options.pop("model", None) or network()
    batches = options.pop("batches", None) or images()
    return oracle.train(model, batches, method=method, balance=balance, **(defaults | options))
