"""Tensors that blocks pass on in dataclasses, and in other objects."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import schedules
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import map_leaves
from pipekit.partition.stages import stages
from tests.partition.networks import require_as_in_a_plain_loop

X = torch.linspace(-1, 1, 24).view(4, 6)


@dataclass(frozen=True)
class Config:
    """Without tensors."""

    scale: float = 0.5


CONFIG = Config()


@dataclass
class Carried:
    x: Tensor
    mask: Tensor | None = None
    config: Config = CONFIG
    step: int = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    mask: Tensor
    config: Config = CONFIG
    step: int = field(default=0, kw_only=True)


@dataclass
class Made:
    """Its __init__ does what must not be done twice."""

    x: Tensor
    mask: InitVar[Tensor]
    config: Config = CONFIG
    step: int = 0

    def __post_init__(self, mask: Tensor) -> None:
        self.x = self.x * mask


@dataclass
class Outer:
    inner: list[Carried]

    @property
    def x(self) -> Tensor:
        return self.inner[0].x

    @property
    def config(self) -> Config:
        return self.inner[0].config


def nested(x: Tensor, mask: Tensor) -> Outer:
    return Outer([Carried(x, mask)])


class Holder:
    def __init__(self, x: Tensor, mask: Tensor) -> None:
        self.x, self.mask, self.config = x, mask, CONFIG


@dataclass
class Attached(Carried):
    """Has more than its fields."""

    def __post_init__(self) -> None:
        self.sum = self.x.sum()


class Block(nn.Module):
    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(6, 6), made

    def forward(self, given: Any) -> Any:
        x = self.linear(given.x) * given.config.scale
        return self.made(x.tanh(), torch.ones_like(x) * 2)


class Network(nn.Module):
    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(made) for _ in range(3))
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        carried = Carried(x)
        for block in self.blocks:
            carried = block(carried)
        return self.head(carried.x + x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("made", "transport"),
    [(Frozen, "threads"), (Made, "threads"), (nested, "threads"), (nested, "distributed")],
)
def test_they_pass_from_stage_to_stage(made: Callable[..., Any], transport: str) -> None:
    layers, batches = stages(Network(made), X), [(X, X)] * 2
    flush = schedules.flush(3, 1)
    require_as_in_a_plain_loop(layers, Network(made), batches, flush, transport=transport)


@pytest.mark.parametrize("made", [Holder, Attached])
def test_other_objects_are_refused_with_what_to_do(made: Callable[..., Any]) -> None:
    says = r"uses a tensor that neither .*return tensors from blocks in tuples, lists, dicts or"
    with pytest.raises(NotRecordable, match=says):
        stages(Network(made), X)


def test_one_without_tensors_stays_the_object_that_it_is() -> None:
    carried = Carried(X)
    copied = map_leaves(lambda leaf: leaf, carried)
    assert copied is not carried
    # Not by ==, which has compared tensors since Python 3.13, where it looked at identity before.
    assert all(vars(copied)[name] is value for name, value in vars(carried).items())
    assert copied.config is CONFIG


class Gives(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = x.x if isinstance(x, Carried) else x
        for block in self.blocks:
            x = block(x)
        return Carried(x)


def test_batches_and_outputs_hold_none() -> None:
    with pytest.raises(NotRecordable, match=r"the example holds a Carried: .* in tuples, lists or"):
        stages(Gives(), (Carried(X),))
    with pytest.raises(NotRecordable, match=r"what the model returns holds a Carried: .* lists or"):
        stages(Gives(), X)
