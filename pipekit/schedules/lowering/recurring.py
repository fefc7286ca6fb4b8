"""Lists that go on without end, as far as they are asked: a head, and a period that repeats."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Generic, TypeVar

T = TypeVar("T")


def same(item: T, times: int) -> T:
    """Return an ``item`` that is the same however many ``times`` the period has come."""
    return item


def plus(number: int, times: int, *, step: int) -> int:
    """Return a number that grows by a step in each period."""
    return number + times * step


@dataclass(frozen=True)
class Recurring(Generic[T]):
    """Items of a head, and then those of a period again and again."""

    head: tuple[T, ...]  # the first ones
    period: tuple[T, ...] = ()  # those behind them; empty: the list is finite
    # returns an item of the period as it is so many periods later
    later: Callable[[T, int], T] = same

    def __getitem__(self, place: int) -> T:
        if place < len(self.head) or not self.period:
            return self.head[place]
        times, place = divmod(place - len(self.head), len(self.period))
        return self.later(self.period[place], times)

    def __iter__(self) -> Iterator[T]:
        rounds = count() if self.period else ()
        repeated = (self.later(item, times) for times in rounds for item in self.period)
        return chain(self.head, repeated)
