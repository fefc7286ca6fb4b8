"""The values that layers of a graph hand to one another, and how they travel along a pipeline."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class ValueProfile:
    """A tensor, or some that travel together, that one layer makes and later layers read.

    Attributes:
        source: the layer that makes it; None if it is the model's input.
        users: the layers that read it, all behind the source; none if it is the model's output or
            is not needed, and then it stays where it was made.
        bytes: of it, for one microbatch.
        saved: whether a backward needs it, so that it is among the ``saved_bytes`` of its source;
            otherwise it costs memory of its own where it is handed over.

    Raises:
        ValueError: a user comes before the source, or there can be no such layer; or the bytes are
            negative or not finite; or an input, or a value without users, is not saved: the first
            stage holds the input and the backward starts from an output, so that both are kept.
    """

    source: int | None
    users: tuple[int, ...]
    bytes: float
    saved: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", tuple(sorted(set(self.users))))
        if not 0 <= self.bytes < math.inf:
            raise ValueError(f"{self}: bytes must be 0 or a positive number, not {self.bytes}")
        if self.source is not None and self.source < 0:
            raise ValueError(f"{self}: there is no such layer")
        if self.users and self.users[0] <= (-1 if self.source is None else self.source):
            raise ValueError(f"{self} has the user {self.users[0]}, which is not behind its source")
        if not self.saved and (self.source is None or not self.users):
            raise ValueError(f"{self} is kept for the backward: it counts as saved")

    def __str__(self) -> str:
        return (
            "a value of the model's input" if self.source is None else f"a value of {self.source}"
        )


class Hop(NamedTuple):
    """One step of a value on its way along a chain of layers.

    Attributes:
        value: its number.
        source: the layer that has it.
        destination: the layer that reads it next.
        own: whether ``source`` made it.
    """

    value: int
    source: int
    destination: int
    own: bool


def hops(values: Sequence[ValueProfile], relayed: bool = False) -> Iterator[Hop]:
    """Yield the steps by which values travel if the layers run in the order of their numbers.

    A value goes from its source to its first user, from there to the second, and so on: it crosses
    every cut between its source and its last user exactly once.  The model's input starts from
    layer 0, since the first stage is given it.

    Args:
        values: of a graph.
        relayed: whether all layers between its source and its last user hand a value on.
    """
    for number, value in enumerate(values):
        place = value.source or 0
        stops = value.users
        if relayed and stops:
            stops = tuple(range(place + 1, stops[-1] + 1))
        for user in stops:
            if user != place:
                yield Hop(number, place, user, own=place == value.source)
                place = user
