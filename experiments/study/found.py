"""A claim's value as found here, with what a reader must know of it."""

from dataclasses import dataclass
from typing import Any

from pipekit.ledger.spread import Error


@dataclass(frozen=True)
class Found:
    """A claim's value with more than the value: what a function returns where one is not enough.

    Attributes:
        value: a number, a truth value, a text, or a list of these.
        note: what a reader must know, where it is computed; other notes stand beside the claim.
        label: where it is not the claim's own, say "simulated" for an emulation that cannot count.
        repeats: all values that the value is the mean or median of.
        invalid: why the value says nothing.
        shown_only: why the value is shown but not judged, say that it rests on the claim itself.
        contradiction: both numbers where the paper has two that exclude each other.
        known_error: by what part of itself a number may be wrong because of how it was found.
    """

    value: Any
    note: str = ""
    label: str = ""
    repeats: tuple[Any, ...] = ()
    invalid: str = ""
    shown_only: str = ""
    contradiction: str = ""
    known_error: Error = 0.0
