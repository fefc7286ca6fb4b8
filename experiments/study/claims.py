"""A claim's value, as a function finds it: alone, in rounds, and with one thing changed."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from experiments.study.found import Found
from experiments.study.rounds import Rounds, settled
from pipekit.ledger.claims import Cause

ROOT = Path(__file__).parents[2]


class Changed:
    """One thing that a claim's function is called with in place of its own; see :func:`changed`."""

    def __init__(self, cause: str, instead: str, *values: Any, **one_thing: Any) -> None:
        self.cause, self.instead = cause, instead
        self.values, self.one_thing = values, one_thing


def changed(cause: str, instead: str, *values: Any, **one_thing: Any) -> Changed:
    """Return an experiment that may explain a miss: the claim again, with one thing changed.

    Args:
        cause: in words that other claims of the same cause have, too.
        instead: what is done instead, in words.
        values: what the function gets in place of its round, for a claim that is found ``over``
            rounds.
        one_thing: the argument that is another, say ``by="time"``.
    """
    return Changed(cause, instead, *values, **one_thing)


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

    Args:
        claim: its id.
        label: of the value, if it has none itself.
        function: that returns the value, or a :class:`Found`.
        point: what it is called with.
        over: what it is called with besides, one round after another; see :mod:`.rounds`.
        because: the experiments made to explain a miss.
    """
    if over is None:
        own = found(function(**point), label)
        base: tuple[Any, ...] = ()
    else:
        rounds = over if isinstance(over, Rounds) else Rounds(tuple(over))
        each = [found(function(one, **point), _label(one, label)) for one in rounds.found]
        simulated = None if rounds.simulated is None else function(rounds.simulated, **point)
        own = settled(claim, each, None if simulated is None else found(simulated, "simulated"))
        base = (rounds.found[0] if rounds.simulated is None else rounds.simulated,)
    causes = []
    for change in because:
        other = found(
            function(*(change.values or base), **{**point, **change.one_thing}), "simulated"
        )
        causes.append(Cause(change.cause, other.value, other.label, change.instead))
    return own, tuple(causes)


def found(value: Any, label: str) -> Found:
    """Return what a function returned as a :class:`Found` with a label."""
    known = value if isinstance(value, Found) else Found(value)
    return known if known.label else replace(known, label=label)


def points(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of some axes' values, the last axis changing first."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def passes(test: str) -> Found:
    """Return whether a test of the toolkit passes here, say "tests/planning/test_balance.py::name".

    Raises:
        ValueError: there is no such test, or no pytest; the sentence says what to install.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if ran.returncode not in (0, 1):
        last = (ran.stderr or ran.stdout).strip().splitlines()[-1:]
        raise ValueError(
            f"{test} cannot be run: {' '.join(last)}; it needs a checkout, installed by "
            "pip install -e '.[dev]'"
        )
    return Found(ran.returncode == 0, f"proved by {test}")


def _label(one: Any, label: str) -> str:
    """Return a round's own label: where no emulation counts, a simulated one stands in."""
    return str(getattr(one, "label", label))
