"""A claim's value, as a function finds it: alone, in rounds, and with one thing changed.

An emulation that parts from its simulation by more than a bound says something about the machine:
it is run again at half the pace, and if that does not help the simulated value stands in, labelled
so.  Where the claim is about the engine's own doing, the value is invalid (:func:`unless_parted`).
Emulations that count only confirm the simulation, lest a host turn an outcome (:func:`settled`).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

from pipekit.ledger import claims
from pipekit.ledger.claims import Cause
from pipekit.ledger.criteria import evaluate
from pipekit.ledger.outcomes import show
from pipekit.ledger.spread import Error, decided

BOUND = 0.05  # how far an emulation's seconds may be from the simulation's, relatively, to count

KNOWN_ERROR = 0.04
"""By what part of itself emulated seconds, or a ratio of them, may be wrong: the worst error of
emulations (``results/reference/prediction_accuracy``), rounded up."""

AGAIN = 1  # emulations that part from the simulation and are run again: more would take too long

T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A claim's value with more than the value, by the arguments of :func:`pipekit.claims.record`.

    ``label`` stands where it is not the claim's own: "simulated" where no emulation counts.
    """

    value: Any
    note: str = ""
    label: str = ""
    repeats: tuple[Any, ...] = ()
    invalid: str = ""
    shown: str = ""
    shown_only: str = ""
    contradiction: str = ""
    known_error: Error = 0.0


@dataclass(frozen=True)
class Rounds(Generic[T]):
    """The same thing ``found`` several times, and once more with nothing emulated (or None)."""

    found: tuple[T, ...]
    simulated: T | None = None


class Emulated(NamedTuple):
    """Seconds of a run: simulated, and emulated as often as asked, if these count."""

    simulated_s: float
    counted: tuple[float, ...]  # emulations within the bound; none if too many were not
    parted: tuple[float, ...] = ()  # by how much, relatively, the others were slower

    @property
    def label(self) -> str:
        return "emulated" if self.counted else "simulated"

    @property
    def seconds(self) -> float:
        return median(self.counted or [self.simulated_s])

    @property
    def note(self) -> str:
        """Why no emulation counts, if none does and some were made."""
        if self.counted or not self.parted:
            return ""
        return (
            f"all {len(self.parted)} emulations took {min(self.parted):+.1%} to "
            f"{max(self.parted):+.1%} of the simulated time more, beyond {BOUND:.0%}: simulated"
        )

    def only(self, number: int | None) -> "Emulated":
        """Return the same with one of its emulations, if they count; None: as if nothing ran."""
        if number is None:
            return Emulated(self.simulated_s, ())
        return self._replace(counted=self.counted[number : number + 1])


def emulated(run: Callable[[float], float], simulated_s: float, repeats: int) -> Emulated:
    """Emulate until so many ``repeats`` are within the bound, or more than :data:`AGAIN` are not.

    ``run`` emulates once at a pace (0.5 takes twice as long) and returns seconds in simulated time.
    With fewer than ``repeats`` within :data:`BOUND` none counts.
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
    most rounds found. The note is that of the round nearest to it. Invalid rounds count only if
    there are no others. The simulation stands in where not all emulations count or confirm it, and
    where it is within :data:`KNOWN_ERROR` of the criterion; a value that is labelled emulated even
    then has no clock in it, say the engine's bytes, and stays.
    """
    if len({each.label for each in rounds}) > 1:
        raise ValueError(f"the rounds differ in what they found of {claim}")
    valid = [each for each in rounds if not each.invalid] or list(rounds)
    values = [each.value for each in valid]
    middle = _middle(values)
    own = min(valid, key=lambda each: _distance(each.value, middle))
    if len(values) > 1:
        own = replace(own, value=middle, repeats=tuple(values))
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


Changed = tuple[str, str, tuple[Any, ...], Mapping[str, Any]]
"""The arguments of :func:`changed`."""


def changed(cause: str, instead: str, *values: Any, **one_thing: Any) -> Changed:
    """Return an experiment that may explain a miss: the claim again, with one thing changed.

    Claims of one ``cause`` share its words; ``instead`` says what is done. The function gets
    ``values`` in place of its round, or the argument of ``one_thing``, say ``by="time"``.
    """
    return cause, instead, values, one_thing


def evaluated(
    claim: str,
    label: str,
    function: Callable[..., Any],
    point: Mapping[str, Any],
    over: "Sequence[Any] | Rounds[Any] | None",
    because: Sequence[Changed],
) -> tuple[Found, tuple[Cause, ...]]:
    """Return a claim's value, its label set, and the values with one thing changed."""

    def value(label: str, /, *one: Any, **changes: Any) -> Found:
        found = function(*one, **{**point, **changes})
        found = found if isinstance(found, Found) else Found(found)
        return found if found.label else replace(found, label=label)

    base: tuple[Any, ...] = ()
    if over is None:
        own = value(label)
    else:
        rounds = over if isinstance(over, Rounds) else Rounds(tuple(over))
        # Where no emulation counts, a simulated round stands in, and says so.
        each = [value(str(getattr(one, "label", label)), one) for one in rounds.found]
        simulated = None if rounds.simulated is None else value("simulated", rounds.simulated)
        own = settled(claim, each, simulated)
        base = (rounds.found[0] if rounds.simulated is None else rounds.simulated,)
    weakest = "exact" if label == "exact" else "simulated"  # a change is not emulated anew
    causes = []
    for cause, instead, values, one_thing in because:
        other = value(weakest, *(values or base), **one_thing)
        causes.append(Cause(cause, other.value, other.label, instead))
    return own, tuple(causes)


def points(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of some axes' values, the last axis changing first."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def passes(*tests: str) -> bool:
    """Return whether tests of the toolkit pass here: each "path::name", or several of these."""
    named, root = " ".join(tests).split(), Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    if ran.returncode not in (0, 1):
        last = (ran.stderr or ran.stdout).strip().splitlines()[-1:]
        raise ValueError(
            f"{' '.join(named)} cannot be run: {' '.join(last)}; it needs a checkout, installed by "
            "pip install -e '.[dev]'"
        )
    return ran.returncode == 0
