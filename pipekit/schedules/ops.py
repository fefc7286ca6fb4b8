"""What the tasks of a pipeline do: one row an op, which everything that treats an op apart reads.

A backward pass is whole (B), or in two parts (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
2024): for the input, whose gradient another stage waits for (I), and for the weights, whose
gradient only the update needs (W).  The letters are those of ``torch.distributed.pipelining``.
Constructing an :class:`Op` adds a row of your own.
"""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Literal


class Payload(Enum):
    """What a message between stages carries: forward an activation, back its gradient."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"

    __hash__ = object.__hash__  # Enum's, of the name, would take most of a look-up

    @property
    def step(self) -> int:
        """What to add to a stage's number for the stage that a message of it is sent to."""
        return 1 if self is Payload.ACTIVATION else -1


@dataclass(frozen=True)
class Item:
    """Data that stays in memory from one task to another, or from the start if no task gives it.

    Attributes:
        name: as a message says it.
        activations: its bytes, in those of a microbatch's activations on the stage.
        input_only: likewise, in the part of them that the backward for the input frees, which a
            profile says.
        weights: likewise, in those of the stage's weights.
        each: whether every microbatch has one on a stage, or the stage has one.
        is_away: whether it lies with the op's peer, or on the host if there is none.
        is_sent: whether one worker's task gives it and one of that op's peer takes it, first in,
            first out.  Until then it lies with the giver.
    """

    name: str
    activations: float = 0
    input_only: float = 0
    weights: float = 0
    each: Literal["microbatch", "stage"] = "microbatch"
    is_away: bool = False
    is_sent: bool = False

    def bytes(self, activations: float, input_only: float, weights: float = 0) -> float:
        """Return its size where a microbatch has ``activations`` and the stage ``weights`` bytes.

        The backward for the input frees ``input_only`` bytes of the activations.
        """
        kept = self.activations * activations + self.input_only * input_only
        return kept + self.weights * weights


WEIGHTS = Item("weights", weights=1, each="stage")
"""The weights of a stage, which a worker has all the time unless it gathers them."""
ACTIVATIONS = Item("activations", activations=1)
"""What a forward leaves for its backward."""
REST = Item("activations for the weights' gradient", activations=1, input_only=-1)
"""What the backward for the input leaves of them for the one for the weights."""
GRADIENTS = Item("gradients", weights=1, each="stage")
"""Of a stage's weights, as backwards add to them."""
SUMS = Item("sums of gradients", each="stage")
"""The share of them that an update needs, if they are summed by a task before it."""
OFFLOADED = Item("offloaded activations", activations=1, is_away=True)
"""Activations on the host, or on another worker."""
SENT_WEIGHTS = Item("weights from its peer", weights=1, each="stage", is_sent=True)
"""A copy of a stage's weights on its way to another worker."""
SENT_GRADIENTS = Item("gradients from its peer", weights=1, each="stage", is_sent=True)
"""A sum of a stage's gradients likewise."""

OPS: list["Op"] = []
"""The row of every op, those of your own too."""
PLACES: dict["Op", int] = {}
"""Where each of them stands there."""
_NAMED: dict[str, "Op"] = {}
_LETTERED: dict[tuple[str, int | None], "Op"] = {}


class _MadeOnce(type):
    """Makes one object of each row, since tables tell ops apart by identity."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        return _LETTERED[made.letter, made.peer]


@dataclass(frozen=True, eq=False, repr=False)
class Op(metaclass=_MadeOnce):
    """What a task does.  Constructing one makes its letter and name known to the readers of tables.

    Attributes:
        letter: in a picture; a capital letter.
        name: in CSV and traces.
        needs: items of its stage, or of its microbatch there, that have to be on the worker.
        takes: likewise, and they are gone when it ends.
        gives: items that are there as soon as it begins.
        receives: what comes in from a neighbouring stage, if there is one on that side.
        sends: what goes out to a neighbouring stage, likewise.
        adds_gradient: whether it adds to the gradient of the weights, after which its microbatch
            has left the stage.
        is_pass: whether it reads a weight version for a microbatch; only UPDATE makes one.
        stream: where it runs; "" is the worker's own, on which it computes.  On any other one it
            begins when the task before it in the list has ended, and runs beside those behind it
            until one needs what it gives.
        slots: how long it takes in a picture, by default.
        moves: the item that it transfers; its bytes and a link give its seconds.
        peer: the worker to which it transfers, or from which; None: the host, or all of a group.

    Raises:
        ValueError: the letter is not a single capital letter, or another op has it or the name; or
            items, slots or ``is_pass`` cannot be.  The same row may be made again, as by a
            notebook's cell: it is the same op.
    """

    letter: str
    name: str
    needs: tuple[Item, ...] = ()
    takes: tuple[Item, ...] = ()
    gives: tuple[Item, ...] = ()
    receives: Payload | None = None
    sends: Payload | None = None
    adds_gradient: bool = False
    is_pass: bool = True
    stream: str = ""
    slots: int = 1
    moves: Item | None = None
    peer: int | None = None

    FORWARD: ClassVar["Op"]
    BACKWARD: ClassVar["Op"]
    BACKWARD_INPUT: ClassVar["Op"]
    BACKWARD_WEIGHT: ClassVar["Op"]
    UPDATE: ClassVar["Op"]
    RECOMPUTE: ClassVar["Op"]

    def __post_init__(self) -> None:
        if self.letter not in [*string.ascii_uppercase]:
            raise ValueError(f"the letter of {self.name} must be a capital letter: {self.letter!r}")
        for each in ("needs", "takes", "gives"):
            items = getattr(self, each)
            if not isinstance(items, tuple) or not all(isinstance(item, Item) for item in items):
                raise ValueError(f"{each} of {self.name} must be a tuple of Items, not {items!r}")
        if not isinstance(self.slots, int) or self.slots < 0:
            raise ValueError(
                f"slots of {self.name} must be a whole number of at least 0, not {self.slots!r}"
            )
        if not self.is_pass and self.letter != "U":
            raise ValueError(f"{self.name} cannot make weight versions: only Op.UPDATE does")
        for other in OPS:
            if (other.letter == self.letter) != (other.base_name == self.base_name):
                free = sorted({*string.ascii_uppercase}.difference(op.letter for op in OPS))
                raise ValueError(
                    f"{self.name} ({self.letter}) and {other.name} ({other.letter}) need a letter "
                    f"and a name of their own: free are {', '.join(free)}"
                )
        known = _LETTERED.get((self.letter, self.peer))
        if known and known._row != self._row:
            raise ValueError(
                f"{self.name} ({self.letter}) is there with another row, which tables may "
                f"have: give this one a letter and a name of its own, or begin anew"
            )
        if not known:
            PLACES[self] = len(OPS)
            OPS.append(self)
            _NAMED[self.name] = _LETTERED[self.letter, self.peer] = self

    def __repr__(self) -> str:
        return f"<Op {self.letter} {self.name}>"

    def __reduce__(self) -> tuple[Callable[..., "Op"], tuple[object, ...]]:
        return _unpickled, (self.name, self._row)

    @property
    def _row(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    @staticmethod
    def named(name: str) -> "Op":
        """Return the op of a ``name``, behind which its peer's number stands; or raise KeyError."""
        base, _, peer = name.rpartition("_")
        if name not in _NAMED and base in _NAMED and re.fullmatch("[0-9]{1,9}", peer):
            return _NAMED[base].to(int(peer))
        return _NAMED[name]

    @staticmethod
    def lettered(letter: str, peer: int | None = None) -> "Op":
        """Return the op of a ``letter``, with a ``peer`` if it transfers; or raise KeyError.

        Raises ValueError as :meth:`to` does.
        """
        op = _LETTERED[letter, None]
        return op if peer is None else op.to(peer)

    def to(self, worker: int) -> "Op":
        """Return the same transfer to another ``worker``, or from it, in place of the host.

        Raises:
            ValueError: none of its items lies there, or is sent.
        """
        if not any(item.is_away or item.is_sent for item in (*self.takes, *self.gives)):
            raise ValueError(f"{self.name} ({self.letter}) has no peer: nothing of it lies there")
        known = _LETTERED.get((self.letter, worker))
        return known or replace(self, name=f"{self.base_name}_{worker}", peer=worker)

    @property
    def base_name(self) -> str:
        """The name, without a peer's number."""
        return self.name if self.peer is None else self.name.removesuffix(f"_{self.peer}")

    @property
    def at_peer(self) -> str:
        """The end of a task's label that names the peer, if there is one."""
        return "" if self.peer is None else f">{self.peer}"

    @cached_property
    def own(self) -> "Op | None":
        """The op that first gives what it takes or needs of its microbatch on the same worker."""
        wanted = [item for item in (*self.takes, *self.needs) if item.each == "microbatch"]
        givers = (op for op in OPS if wanted and wanted[0] in op.gives)
        return next(givers, None)

    @property
    def leaves(self) -> bool:
        """Whether the item that it moves leaves the worker."""
        return any(item.is_away or item.is_sent for item in self.gives) or self.moves in self.takes

    @property
    def borrows(self) -> bool:
        """Whether it brings a stage's weights from a worker to one that has none of its own."""
        return SENT_WEIGHTS in self.takes

    @property
    def is_once(self) -> bool:
        """Whether a microbatch has it at most once on a stage."""
        return any(i.each == "microbatch" for i in (*self.needs, *self.takes, *self.gives))

    @cached_property
    def in_flight(self) -> int:
        """By how many microbatches' activations its worker keeps more after it."""
        kept = ACTIVATIONS, REST
        given = sum(item in kept for item in self.gives if item not in self.needs)
        return given - sum(item in kept for item in self.takes)

    @property
    def is_backward(self) -> bool:
        """Whether it is a backward, whole or in part."""
        return self.adds_gradient or self.sends is Payload.GRADIENT

    def activation_bytes(self, whole: float, part: float) -> float:
        """Return by how many bytes of activations the stage keeps more after it, or less.

        A microbatch has ``whole`` bytes, of which the backward for the input frees a ``part``.
        """
        given, taken = (
            sum(item.bytes(whole, part) for item in items if item in (ACTIVATIONS, REST))
            for items in (self.gives, self.takes)
        )
        return given - taken


Op.FORWARD = Op(
    "F",
    "FORWARD",
    needs=(WEIGHTS,),
    gives=(ACTIVATIONS,),
    receives=Payload.ACTIVATION,
    sends=Payload.ACTIVATION,
)
Op.BACKWARD = Op(
    "B",
    "BACKWARD",
    needs=(WEIGHTS,),
    takes=(ACTIVATIONS,),
    gives=(GRADIENTS,),
    receives=Payload.GRADIENT,
    sends=Payload.GRADIENT,
    adds_gradient=True,
    slots=2,
)
Op.BACKWARD_INPUT = Op(
    "I",
    "BACKWARD_INPUT",
    needs=(WEIGHTS,),
    takes=(ACTIVATIONS,),
    gives=(REST,),
    receives=Payload.GRADIENT,
    sends=Payload.GRADIENT,
)
Op.BACKWARD_WEIGHT = Op(
    "W",
    "BACKWARD_WEIGHT",
    needs=(WEIGHTS,),
    takes=(REST,),
    gives=(GRADIENTS,),
    adds_gradient=True,
)
Op.UPDATE = Op("U", "UPDATE", takes=(SUMS,), is_pass=False, slots=0)
Op.RECOMPUTE = Op("R", "RECOMPUTE", needs=(WEIGHTS, ACTIVATIONS), gives=(ACTIVATIONS,))

PASSES = Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
"""The passes of every method; engines run these, and updates."""


def _unpickled(name: str, row: tuple[Any, ...]) -> Op:
    return _NAMED.get(name) or Op(*row)
