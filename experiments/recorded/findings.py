"""A claim of a paper, as printed and as found here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from experiments.study.found import Found
from experiments.study.rounds import settled
from pipekit.ledger import claims
from pipekit.ledger.claims import Cause


@dataclass(frozen=True, kw_only=True)
class Finding(Found):
    """Our value of a claim, ready for :meth:`experiments.recorded.notebook.Notebook.record_all`.

    Attributes:
        claim: an id of ``data/claims.csv``.
        figure: the name of the file that shows it, if not its neighbours'.
        causes: the experiments made to explain a miss.
    """

    claim: str
    figure: str | None = None
    causes: tuple[Cause, ...] = ()

    @classmethod
    def of(
        cls, claim: str, value: Any, label: str, note: str = "", figure: str | None = None
    ) -> Self:
        """Return a value of the kind that a label says."""
        return cls(claim=claim, value=value, label=label, note=note, figure=figure)

    @classmethod
    def exact(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value that was counted or proved, not timed."""
        return cls.of(claim, value, "exact", note, figure)

    @classmethod
    def simulated(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value that the simulator computed."""
        return cls.of(claim, value, "simulated", note, figure)

    @classmethod
    def emulated(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value of the real engine whose layers wait instead of computing."""
        return cls.of(claim, value, "emulated", note, figure)

    @classmethod
    def measured(cls, claim: str, value: Any, note: str = "", figure: str | None = None) -> Self:
        """Return a value of real computing on this machine."""
        return cls.of(claim, value, "measured", note, figure)

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


def printed_number(claim: str) -> float | None:
    """Return the number that a paper prints for a claim; None if the ledger has no such claim."""
    known = claims.load().get(claim)
    return None if known is None else float(known.value)


def merged(rounds: Sequence[Sequence[Finding]], simulated: Sequence[Finding] = ()) -> list[Finding]:
    """Return findings that were made several times as one each; see
    :func:`experiments.study.rounds.settled`.

    Args:
        rounds: the same claims in the same order, found in each round.
        simulated: the same once more, with nothing emulated.

    Raises:
        ValueError: they are not of the same claims, or rounds not of the same labels.
    """
    beside: Sequence[Finding | None] = simulated or [None] * len(rounds[0])
    return [_settled(*each) for each in zip(zip(*rounds, strict=True), beside, strict=True)]


def _settled(rounds: Sequence[Finding], simulated: Finding | None) -> Finding:
    claim = rounds[0].claim
    if any(other.claim != claim for other in rounds):
        raise ValueError(f"the rounds differ in what they found of {claim}")
    if simulated is not None and simulated.claim != claim:
        raise ValueError(f"{claim} stands beside the simulation of {simulated.claim}")
    return settled(claim, rounds, simulated)
