"""What the engine's tests train: models, data, and the comparison with the papers' equations.

Worker processes import this file, so that it stays free of pytest and hypothesis.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pipekit as pk
from pipekit import Schedule, oracle, schedules

Batches = list[tuple[Any, Any]]
OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


class Method(NamedTuple):
    """A pipeline method: its name in the oracle, and ``(stages, microbatches)`` to it."""

    oracle: str
    schedule: Callable[[int, int], Schedule]
    divides: bool  # whether a batch has several microbatches


def interleaved(stages: int, microbatches: int) -> Schedule:
    """On half as many workers as stages, or on one if that does not go."""
    if stages == 1:
        return schedules.flush(1, microbatches)
    workers = 1 if stages % 2 else stages // 2
    return schedules.interleaved(stages, microbatches, workers=workers)


METHODS: dict[str, Method] = {
    "gpipe": Method("gpipe", schedules.gpipe, True),
    "flush": Method("flush", schedules.flush, True),
    "interleaved": Method("flush", interleaved, True),
    "2bw": Method("2bw", schedules.two_bw, True),
    "model_parallel": Method("model_parallel", lambda d, _: schedules.model_parallel(d), False),
    "pipedream": Method("pipedream", lambda d, _: schedules.pipedream(d), False),
    "vertical_sync": Method(
        "pipedream_vertical_sync", lambda d, _: schedules.pipedream(d, vertical_sync=True), False
    ),
    "no_stashing": Method(
        "pipedream_no_stashing", lambda d, _: schedules.pipedream(d, stashing=False), False
    ),
}

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}

sgd = OPTIMIZERS["sgd"]
nesterov = OPTIMIZERS["nesterov"]


# --- Models: rows of 6 numbers in, 3 out ----------------------------------------------------------


class Fork(nn.Module):
    """From a tensor to a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.linear(x)


class On(nn.Module):
    """Apply a layer to one of a pair."""

    def __init__(self, place: int, layer: nn.Module) -> None:
        super().__init__()
        self.place, self.layer = place, layer

    def forward(self, pair: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed = self.layer(pair[self.place])
        return tuple(changed if i == self.place else x for i, x in enumerate(pair))


class Join(nn.Module):
    """From a pair back to a tensor."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] * pair[1] + pair[0]


def mixed() -> nn.Sequential:
    """Dropout, batch norm, an in-place layer, and layers without parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Linear(8, 8),
        nn.Dropout(0.5, inplace=True),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def pairs() -> nn.Sequential:
    """Layers that pass a pair on, so that stages do."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 6),
        Fork(),
        On(0, nn.Dropout(0.4)),
        On(1, nn.Sequential(nn.Linear(6, 6), nn.Tanh())),
        On(1, nn.BatchNorm1d(6)),
        Join(),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    )


def frozen() -> nn.Sequential:
    """Some parameters are not trained, one layer not at all."""
    model = mixed()
    for name in ("0.weight", "4.weight", "4.bias", "7.bias"):
        model.get_parameter(name).requires_grad_(False)
    return model


def images() -> nn.Sequential:
    """Convolutions over the 6 numbers; channels-last and flattened views between layers."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "mixed": mixed,
    "pairs": pairs,
    "frozen": frozen,
    "images": images,
}


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, nothing between them."""
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def data(
    batches: int = 3, rows: int | Sequence[int] = 8, dtype: torch.dtype | None = None
) -> Batches:
    """Rows of 6 numbers and of 3; ``rows`` for each batch, or one number for all."""
    generator = torch.Generator().manual_seed(4)
    counts = [rows] * batches if isinstance(rows, int) else rows
    return [
        (
            torch.randn(r, 6, generator=generator).to(dtype or torch.float32),
            torch.randn(r, 3, generator=generator).to(dtype or torch.float32),
        )
        for r in counts
    ]


class Midst:
    """Batches; when their reader comes to number ``at``, something happens."""

    def __init__(self, batches: Any, at: int, happens: Callable[[], object]) -> None:
        self._batches, self._at, self._happens = batches, at, happens

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._batches):
            if number == self._at:
                self._happens()
            yield batch


# --- Training both ways --------------------------------------------------------------------------


def values(**settings: Any) -> dict[str, Any]:
    """Settings by their names, as a pipeline takes them."""
    for argument, kind in (("updates", pk.Updates), ("execution", pk.Execution)):
        names = [field.name for field in fields(kind) if field.name in settings]
        settings[argument] = kind(**{name: settings.pop(name) for name in names})
    return settings


def pipeline(
    model: nn.Sequential,
    method: str | pk.Schedule = "flush",
    balance: Sequence[int] | pk.Plan | str = "auto",
    **options: Any,
) -> pk.Pipeline:
    """A pipeline with the tests' defaults: momentum, mean squares."""
    if isinstance(method, str):
        assert not isinstance(balance, pk.Plan)
        counts = options.pop("stages", None) or len(balance), options.pop("m", 4)
        method = METHODS[method].schedule(*counts)
    arguments: dict[str, Any] = {"optimizer": nesterov, "loss": nn.MSELoss(), "seed": 0} | options
    return pk.Pipeline(model, method, balance=balance, **values(**arguments))


def twins(*arguments: Any, **options: Any) -> list[pk.Pipeline]:
    """The same pipeline over threads and over processes."""
    return [pipeline(*arguments, transport=each, **options) for each in ("threads", "distributed")]


def by_equations(
    model: nn.Sequential, batches: Batches, method: str, balance: Sequence[int], **options: Any
) -> oracle.OracleRun:
    """The oracle's run with the same defaults; it knows neither transports nor recomputation."""
    m = options.pop("m", 4)
    arguments: dict[str, Any] = {"optimizer": nesterov, "loss": nn.MSELoss(), "seed": 0} | options
    for name in ("transport", "recompute"):
        arguments.pop(name, None)
    return oracle.train(
        model,
        batches,
        method=METHODS[method].oracle,
        balance=balance,
        microbatches=m if METHODS[method].divides else 1,
        **arguments,
    )


class Trained(NamedTuple):
    """What came of a training: losses, and the tensors that the model then has."""

    losses: list[float]
    state: dict[str, Tensor]


def trained(pipe: pk.Pipeline, *calls: Any, **how: Any) -> Trained:
    """Train a pipeline, call after call."""
    losses = [loss for batches in calls for loss in pipe.train(batches, **how).losses]
    return Trained(losses, pipe.state_dict())


def unlike(found: Trained, truth: Trained | oracle.OracleRun) -> list[str]:
    """What of two trainings is not equal bit for bit: losses, or tensors by their names."""
    if isinstance(truth, oracle.OracleRun):
        truth = Trained(truth.losses, truth.weights[-1] | truth.buffers)
    losses = ["losses"] * (found.losses != truth.losses)
    return losses + different(found.state, truth.state)


def unlike_equations(
    model: nn.Sequential, batches: Batches, method: str, balance: Sequence[int], **options: Any
) -> list[str]:
    """What differs between a pipeline's training and the oracle's."""
    found = trained(pipeline(model, method, balance, **options), batches)
    return unlike(found, by_equations(model, batches, method, balance, **options))


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names under which two sets of tensors are not equal bit for bit."""
    return [
        name
        for name in sorted({*one, *other})
        if name not in one
        or name not in other
        or one[name].dtype != other[name].dtype
        or not torch.equal(one[name], other[name])
    ]


def dropping(stages: int) -> nn.Sequential:
    """A layer a stage: linear ones with dropout, the last without."""
    torch.manual_seed(5)
    inner = (nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2)) for _ in range(stages - 1))
    return nn.Sequential(*inner, nn.Linear(6, 3))


def cut(layers: int, edges: set[int]) -> list[int]:
    """The balance with a new stage at each of ``edges``."""
    return [b - a for a, b in pairwise([0, *sorted(edges), layers])]


class _Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.function = function
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.function(gradient), None


def in_backward(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return x; in the backward its gradient is what a function makes of that of the result."""
    y: Tensor = _Called.apply(x, function)
    return y


class SlowBackward(nn.Module):
    """A layer whose backward takes 0.2 s."""

    def forward(self, x: Tensor) -> Tensor:
        def slow(gradient: Tensor) -> Tensor:
            time.sleep(0.2)
            return gradient

        return in_backward(slow, x)
