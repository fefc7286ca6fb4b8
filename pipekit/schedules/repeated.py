"""Tables whose every batch is alike: one batch is written down, and the rest is made as it is read.

A run of a hundred thousand microbatches so begins as soon as one of eight.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar, overload


class Shiftable(Protocol):
    """Something that a table has for every batch, say a task."""

    def later(self, microbatches: int, versions: int) -> Self:
        """Return the same, ``microbatches`` and weight ``versions`` later."""


T = TypeVar("T", bound=Shiftable)


class Pattern(Sequence[T]):
    """Items of which only the first ones are written down, and the others made from these.

    Attributes:
        unit: what is written down.
    """

    unit: tuple[T, ...]

    def like(self, unit: Sequence[T]) -> "Pattern[Any]":
        """Return other items that come as often, and are shifted alike."""
        raise NotImplementedError


class Repeated(Pattern[T]):
    """Items that come again and again, each time for later microbatches and versions.

    It is equal to the tuple of all of them, in which they would take much longer to make.

    Args:
        unit: what comes again.
        times: how often.
        microbatches: by how many later each time.
        versions: likewise.
    """

    def __init__(self, unit: Sequence[T], times: int, microbatches: int, versions: int) -> None:
        self.unit, self.times = tuple(unit), times
        self.microbatches, self.versions = microbatches, versions

    def like(self, unit: Sequence[T]) -> "Repeated[Any]":
        """Return other items that come as often, and are shifted alike."""
        return Repeated(unit, self.times, self.microbatches, self.versions)

    def __len__(self) -> int:
        return self.times * len(self.unit)

    def __iter__(self) -> Iterator[T]:
        for time in range(self.times):
            microbatches, versions = time * self.microbatches, time * self.versions
            for item in self.unit:
                yield item.later(microbatches, versions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return tuple(self[place] for place in places)
        time, place = divmod(places, len(self.unit))
        return self.unit[place].later(time * self.microbatches, time * self.versions)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Repeated) and self._parts() == other._parts():
            return True
        if not isinstance(other, (tuple, Repeated)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _parts(self) -> tuple[Any, ...]:
        return self.unit, self.times, self.microbatches, self.versions


def repeat(unit: Sequence[T], times: int, microbatches: int, versions: int) -> Sequence[T]:
    """Return items that come again, if they do; see :class:`Repeated`."""
    return Repeated(unit, times, microbatches, versions) if times > 1 else tuple(unit)


def distinct(items: Sequence[T]) -> Sequence[T]:
    """Return of items that come again and again only the first ones, else all."""
    return items.unit if isinstance(items, Pattern) else items


def alike(pattern: Sequence[Shiftable], unit: Sequence[T]) -> Sequence[T]:
    """Return the ``unit`` as often as the items of a ``pattern`` come, and shifted alike."""
    return pattern.like(unit) if isinstance(pattern, Pattern) else unit
