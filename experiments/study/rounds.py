"""Values that the speed of a machine has a part in: taken several times, believed with care.

What is emulated has a simulation beside it that no machine can slow down.  An emulation that parts
from it by more than a bound says something about the machine, not about the schedule: it is run
again at half the pace, so that what the machine adds counts half, and if that does not help the
simulated value stands in, labelled as what it is.  Where that would say nothing, since the claim is
about the engine's own doing, the value is invalid (:func:`unless_parted`).

Emulations that count still differ from host to host.  So the simulation decides: emulations confirm
it, and where they are judged otherwise, it stands in their place.  A criterion so near to it that
an emulation's known error could turn the verdict leaves the claim undecided (:func:`settled`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

from pipekit.ledger import claims
from pipekit.ledger.criteria import evaluate
from pipekit.ledger.outcomes import show
from pipekit.ledger.spread import Error, decided

BOUND = 0.05
"""How far an emulation's seconds may be from the simulation's, relatively, to count."""

KNOWN_ERROR = 0.01
"""By what part of itself emulated seconds, or a ratio of them, may be wrong: the mean error of
emulations (``results/reference/prediction_accuracy``), rounded up."""

AGAIN = 1
"""How many emulations that part from the simulation are run again, at half the pace: more would
take most of a run's time, on a machine that cannot keep the pace."""

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A claim's value with more than the value: what a function returns where one is not enough.

    ``note`` is what a reader must know, where it is computed; ``label`` stands where it is not the
    claim's own, say "simulated" for an emulation that cannot count. All others are arguments of
    :func:`pipekit.claims.record`.
    """

    value: Any
    note: str = ""
    label: str = ""
    repeats: tuple[Any, ...] = ()
    invalid: str = ""
    shown_only: str = ""
    contradiction: str = ""
    known_error: Error = 0.0


@dataclass(frozen=True)
class Rounds(Generic[T]):
    """The same thing ``found`` several times, and once more with nothing emulated (or None).

    A round that has a ``label`` says itself what kind of number it is.
    """

    found: tuple[T, ...]
    simulated: T | None = None


class Emulated(NamedTuple):
    """Seconds of a run: simulated, and emulated as often as asked, if these count."""

    simulated_s: float
    counted: tuple[float, ...]  # emulations within the bound; none if too many were not
    parted: tuple[float, ...] = ()  # by how much, relatively, the others were slower

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
    """Emulate until so many ``repeats`` are within the bound, or more than :data:`AGAIN` are not.

    ``run`` emulates once at a pace (1 as asked for, 0.5 takes twice as long) and returns the
    seconds in simulated time.  With fewer than ``repeats`` within :data:`BOUND` none counts.
    """
    counted, parted = list[float](), list[float]()
    while len(counted) < repeats and len(parted) <= AGAIN:
        seconds = run(0.5 ** len(parted))
        beyond = seconds / simulated_s - 1
        if abs(beyond) <= BOUND:
            counted.append(seconds)
        else:
            parted.append(beyond)
    return Emulated(simulated_s, tuple(counted) if len(counted) == repeats else (), tuple(parted))


def unless_parted(found: Found, seconds: float, simulated_s: float) -> Found:
    """Return what was emulated, invalid if its seconds part from the simulated ones."""
    beyond = seconds / simulated_s - 1
    if abs(beyond) <= BOUND:
        return found
    why = f"the emulation took {beyond:+.1%} of the simulated time more, beyond {BOUND:.0%}"
    return replace(found, invalid=why)


def settled(claim: str, rounds: Sequence[Found], simulated: Found | None) -> Found:
    """Return what rounds have found of a claim, by its id, as one value with its repeats.

    A number is the median of its rounds, each of a list by itself; a truth value or a text is what
    most rounds found. The note is that of the round nearest to it. Invalid rounds do not count, if
    there are others.

    The simulation, the same with nothing emulated, stands in where not all emulations count or
    confirm it, or where it is within :data:`KNOWN_ERROR` of the criterion: what a host adds to
    emulations never turns an outcome.  What is labelled emulated even so has no clock in it, say
    the engine's bytes, and stays.
    """
    own = _merged(claim, rounds)
    if simulated is None or own.invalid or own.shown_only or simulated.label != "simulated":
        return own
    known = claims.load()[claim]
    if known.label == "simulated":
        return simulated
    ran = f"the middle of {len(own.repeats) or 1} emulations is {show(own.value)}"
    if own.label == "simulated":
        ran = "some seconds are simulated, as their emulations do not count"
    simulated = replace(simulated, note="; ".join(filter(None, [simulated.note, ran])))
    error = simulated.known_error or KNOWN_ERROR
    if not decided(known.check, simulated.value, (), known.target, error):
        return replace(simulated, known_error=error)
    both = (evaluate(known.check, one.value, known.target).passed for one in (own, simulated))
    clear = decided(known.check, own.value, own.repeats, known.target)
    return own if own.label == "emulated" and clear and len(set(both)) == 1 else simulated


def _merged(claim: str, rounds: Sequence[Found]) -> Found:
    if len({each.label for each in rounds}) > 1:
        raise ValueError(f"the rounds differ in what they found of {claim}")
    valid = [each for each in rounds if not each.invalid] or list(rounds)
    values = [each.value for each in valid]
    middle = _middle(values)
    nearest = min(valid, key=lambda each: _distance(each.value, middle))
    return replace(nearest, value=middle, repeats=tuple(values) if len(values) > 1 else ())


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
