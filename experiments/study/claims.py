"""A claim's value, as a function finds it: alone, in rounds, and with one thing changed."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.study.rounds import Found, Rounds, settled
from pipekit.ledger.claims import Cause

ROOT = Path(__file__).parents[2]


class Changed(NamedTuple):
    """One thing that a claim's function is called with in place of its own; see :func:`changed`."""

    cause: str
    instead: str
    values: tuple[Any, ...]
    one_thing: Mapping[str, Any]


def changed(cause: str, instead: str, *values: Any, **one_thing: Any) -> Changed:
    """Return an experiment that may explain a miss: the claim again, with one thing changed.

    ``cause`` is in words that other claims of the same cause have, too, and ``instead`` says what
    is done. The function gets ``values`` in place of its round, if it is found ``over`` rounds, and
    the argument of ``one_thing``, say ``by="time"``.
    """
    return Changed(cause, instead, values, one_thing)


Value = Callable[..., Any]


def evaluated(
    claim: str,
    label: str,
    function: Value,
    point: Mapping[str, Any],
    over: "Sequence[Any] | Rounds[Any] | None",
    because: Sequence[Changed],
) -> tuple[Found, tuple[Cause, ...]]:
    """Return a claim's value, its label set, and the values with one thing changed.

    ``function`` is called with ``point``, and with a round besides if it is found ``over`` some; a
    value without a label of its own has that of its round, or ``label``.
    """

    def value(label: str, /, *one: Any, **changes: Any) -> Found:
        return found(function(*one, **{**point, **changes}), label)

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
    causes = []
    for change in because:
        other = value("simulated", *(change.values or base), **change.one_thing)
        causes.append(Cause(change.cause, other.value, other.label, change.instead))
    return own, tuple(causes)


def found(value: Any, label: str) -> Found:
    """Return what a function returned as a :class:`Found` with a label."""
    known = value if isinstance(value, Found) else Found(value)
    return known if known.label else replace(known, label=label)


def points(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of some axes' values, the last axis changing first."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def passes(*tests: str) -> bool:
    """Return whether tests of the toolkit pass here: each "path::name", or several of these."""
    named = " ".join(tests).split()
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *named],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
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
