"""Units in which a number is easy to read.

Bytes are decimal; GiB, 2^30, is only what a device has (``Device``), and what a paper prints in it.
"""

from collections.abc import Iterable
from numbers import Integral, Real

SECONDS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
BYTES = {"GB": 1e-9, "MB": 1e-6, "kB": 1e-3}
MOST = 1e100
"""Seconds, bytes or factors that anything costs: sums and products of such numbers are finite."""


def require_amount(name: str, value: float) -> None:
    """Raise ValueError unless seconds, bytes or a factor are 0 or positive, and finite."""
    if not (isinstance(value, Real) and 0 <= float(value) <= MOST):
        raise ValueError(f"{name} must be 0 or a positive number up to {MOST:g}, not {value}")


def whole(name: str, value: object, least: int = 1) -> int:
    """Return a whole number of any kind as an int; ValueError unless it is at least so large."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def readable(number: float, units: dict[str, float]) -> tuple[float, str]:
    """Return factor and name of the largest unit that makes a number at least 1, or the last."""
    *_, smallest = units
    unit = next((unit for unit, factor in units.items() if number * factor >= 1), smallest)
    return units[unit], unit


def written(number: float, units: dict[str, float]) -> str:
    """Return a number of seconds or bytes as text, say "132 MB"; never as a power of ten."""
    factor, unit = readable(number, units)
    value = number * factor
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def bytes_text(number: float) -> str:
    """Return a number of bytes as text, say "1.463 GB"."""
    return written(number, BYTES)


def memory_text(number: float) -> str:
    """Return a device's memory as text: "16 GiB", or decimal where that is no whole number."""
    gib = number / 2**30
    return f"{gib:,.0f} GiB" if gib.is_integer() else bytes_text(number)


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as text, say one a worker: "4 3 2 1"."""
    return " ".join(map(str, numbers))


def plural(number: int, noun: str, ending: str = "s") -> str:
    """Return a number of things as text: "1 worker", "2 workers"."""
    return f"{number} {noun}{ending * (number != 1)}"
