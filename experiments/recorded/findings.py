"""A claim of a paper, as printed and as found here."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from pipekit.ledger import claims
from pipekit.ledger.claims import Cause
from pipekit.ledger.spread import Error


@dataclass(frozen=True)
class Finding:
    """Our value of a claim, ready for :meth:`experiments.recorded.notebook.Notebook.record_all`.

    The claim is an id of ``data/claims.csv``; the value a number, a truth value, a text, or a list
    of these; the label "measured", "emulated", "simulated" or "exact"; the note what a reader must
    know beside the value; the figure the name of the file that shows it, if not its neighbours';
    repeats all values that the value is the mean or median of; invalid why it says nothing,
    shown_only why it is not to be judged; causes the experiments made to explain a miss;
    contradiction both numbers where the paper has two that exclude each other;
    known_error by what part of itself a number may be wrong because of how it was found.
    """

    claim: str
    value: Any
    label: str
    note: str = ""
    figure: str | None = None
    repeats: tuple[Any, ...] = ()
    invalid: str = ""
    shown_only: str = ""
    causes: tuple[Cause, ...] = ()
    contradiction: str = ""
    known_error: Error = 0.0

    @classmethod
    def exact(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value that was counted or proved, not timed."""
        return cls(claim, value, "exact", note, figure)

    @classmethod
    def simulated(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value that the simulator computed."""
        return cls(claim, value, "simulated", note, figure)

    @classmethod
    def emulated(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value of the real engine whose layers wait instead of computing."""
        return cls(claim, value, "emulated", note, figure)

    @classmethod
    def measured(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value of real computing on this machine."""
        return cls(claim, value, "measured", note, figure)

    def over(self, repeats: Iterable[Any]) -> Self:
        """Return the same with all values that its value is the mean or median of."""
        return replace(self, repeats=tuple(repeats))

    def only_shown(self, why: str) -> Self:
        """Return the same, not to be judged, say since its value rests on the claim itself."""
        return replace(self, shown_only=why)

    def because(self, cause: str, value: Any, label: str = "simulated", changed: str = "") -> Self:
        """Return the same with one more experiment: its value once one thing is changed.

        The claim's miss has this cause if the changed value meets its criterion.

        Args:
            cause: in words that other claims of the same cause have, too.
            value: as :attr:`value`.
            label: what kind of number it is.
            changed: what was done instead.
        """
        return replace(self, causes=(*self.causes, Cause(cause, value, label, changed)))

    def contradicted(self, both: str) -> Self:
        """Return the same with the two numbers of the paper that exclude each other, and where."""
        return replace(self, contradiction=both)


def printed(claim: str) -> str:
    """Return the value that a paper prints for a claim, as text.

    Raises:
        KeyError: the ledger has no such claim.
    """
    return claims.load()[claim].value


def printed_number(claim: str) -> float | None:
    """Return the number that a paper prints for a claim; None if the ledger has no such claim."""
    return float(printed(claim)) if claim in claims.load() else None
