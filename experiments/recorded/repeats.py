"""Values that the speed of a machine has a part in: taken several times, believed with care.

What is emulated has a simulation beside it that no machine can slow down.  An emulation that parts
from it by more than a bound says something about the machine, not about the schedule: it is run
again at half the pace, so that what the machine adds counts half, and if that does not help the
simulated value stands in, labelled as what it is.  Where that would say nothing, since the claim is
about the engine's own doing, the finding is invalid (:func:`unless_parted`).

Emulations that count still differ by what the machine adds, and from host to host.  So the
simulation decides, which has no clock in it: emulations confirm it, and where they are judged
otherwise, it stands in their place.  A criterion so near to it that an emulation's known error
could turn the verdict leaves the claim undecided, on every host (:func:`merged`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from experiments.recorded.findings import Finding
from pipekit.ledger import claims
from pipekit.ledger.criteria import evaluate
from pipekit.ledger.outcomes import show
from pipekit.ledger.spread import decided

BOUND = 0.05
"""How far an emulation's seconds may be from the simulation's, relatively, to count."""

KNOWN_ERROR = 0.01
"""By what part of itself emulated seconds, or a ratio of them, may be wrong: the mean error of
emulations (``results/reference/prediction_accuracy``), rounded up."""

AGAIN = 1
"""How many emulations that part from the simulation are run again, at half the pace: more would
take most of a run's time, on a machine that cannot keep the pace."""


class Emulated(NamedTuple):
    """Seconds of a run: simulated, and emulated as often as asked, if these count.

    ``counted`` are the emulations within the bound, or none if too many were not; ``parted`` says
    by how much, relatively, the others were slower than simulated.
    """

    simulated_s: float
    counted: tuple[float, ...]
    parted: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """What kind of number :attr:`seconds` is."""
        return "emulated" if self.counted else "simulated"

    @property
    def seconds(self) -> float:
        """The median emulation, or the simulated seconds if none counts."""
        return median(self.counted) if self.counted else self.simulated_s

    @property
    def note(self) -> str:
        """Why no emulation counts; empty if some do, or none was made."""
        if self.counted or not self.parted:
            return ""
        return (
            f"all {len(self.parted)} emulations took {min(self.parted):+.1%} to "
            f"{max(self.parted):+.1%} of the simulated time more, beyond {BOUND:.0%}: simulated"
        )

    def only(self, number: int) -> "Emulated":
        """Return the same with one of its emulations, or with none if none counts."""
        return self._replace(counted=self.counted[number : number + 1])

    @property
    def unrun(self) -> "Emulated":
        """The same as if nothing had been emulated."""
        return Emulated(self.simulated_s, ())


def emulated(run: Callable[[float], float], simulated_s: float, repeats: int) -> Emulated:
    """Emulate until so many ``repeats`` count, or more than :data:`AGAIN` do not.

    Args:
        run: emulates once at a pace, of which 1 is what was asked for and 0.5 takes twice as long,
            and returns the seconds in simulated time.
        simulated_s: what they should be.
        repeats: how many must be within :data:`BOUND`; with fewer none counts.
    """
    counted, parted = list[float](), list[float]()
    while len(counted) < repeats and len(parted) <= AGAIN:
        seconds = run(0.5 ** len(parted))
        beyond = seconds / simulated_s - 1
        if abs(beyond) <= BOUND:
            counted.append(seconds)
        else:
            parted.append(beyond)
    enough = len(counted) == repeats
    return Emulated(simulated_s, tuple(counted) if enough else (), tuple(parted))


def unless_parted(found: Finding, seconds: float, simulated_s: float) -> Finding:
    """Return a finding of an emulation, invalid if its seconds part from the simulated ones."""
    beyond = seconds / simulated_s - 1
    if abs(beyond) <= BOUND:
        return found
    why = f"the emulation took {beyond:+.1%} of the simulated time more, beyond {BOUND:.0%}"
    return replace(found, invalid=why)


def merged(rounds: Sequence[Sequence[Finding]], simulated: Sequence[Finding] = ()) -> list[Finding]:
    """Return findings that were made several times as one each, with its repeats.

    A number is the median of its rounds, each number of a list by itself; a truth value or a text
    is what most rounds found, and the first of them if these are equally many.  The note is that of
    the round nearest to it.  Invalid rounds do not count, if there are others.

    Args:
        rounds: the same claims in the same order, found in each round.
        simulated: the same once more, with nothing emulated.  One of them stands in where not all
            of its emulations count or confirm it, or where it is within :data:`KNOWN_ERROR` of the
            criterion: what a host adds to emulations never turns an outcome.  What is labelled
            emulated even so has no clock in it, say the engine's bytes, and stays.
    """
    found = [_merged(same) for same in zip(*rounds, strict=True)]
    if not simulated:
        return found
    return [_settled(*pair) for pair in zip(found, simulated, strict=True)]


def _settled(found: Finding, simulated: Finding) -> Finding:
    if found.claim != simulated.claim:
        raise ValueError(f"{found.claim} stands beside the simulation of {simulated.claim}")
    claim = claims.load().get(found.claim)
    if claim is None or found.invalid or found.shown_only or simulated.label != "simulated":
        return found
    if claim.label == "simulated":
        return simulated
    ran = f"the middle of {len(found.repeats) or 1} emulations is {show(found.value)}"
    if found.label == "simulated":
        ran = "some seconds are simulated, as their emulations do not count"
    error = simulated.known_error or KNOWN_ERROR
    if not decided(claim.check, simulated.value, (), claim.target, error):
        return replace(simulated, note=_joined(simulated.note, ran), known_error=error)
    own, its = (evaluate(claim.check, one.value, claim.target).passed for one in (found, simulated))
    clear = own == its and decided(claim.check, found.value, found.repeats, claim.target)
    if found.label == "emulated" and clear:
        return found
    return replace(simulated, note=_joined(simulated.note, ran))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _merged(same: Sequence[Finding]) -> Finding:
    first = same[0]
    if any((other.claim, other.label) != (first.claim, first.label) for other in same):
        raise ValueError(f"the rounds differ in what they found of {first.claim}")
    valid = [each for each in same if not each.invalid] or list(same)
    values = [each.value for each in valid]
    middle = _middle(values)
    nearest = min(valid, key=lambda each: _distance(each.value, middle))
    repeats = tuple(values) if len(values) > 1 else ()
    return replace(nearest, value=middle, repeats=repeats)


def _middle(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list | tuple):
        return [_middle(each) for each in zip(*values, strict=True)]
    if isinstance(values[0], bool | str):
        return max(values, key=values.count)
    return values[0] if len(set(values)) == 1 else median(values)


def _distance(value: Any, middle: Any) -> float:
    if isinstance(middle, list):
        return sum(_distance(v, m) for v, m in zip(value, middle, strict=True))
    if isinstance(middle, bool | str):
        return float(value != middle)
    return float(abs(value - middle) / (abs(middle) or 1))
