"""A timeline's title, and the unit of its times: the same on paper and on the canvas."""

import pipekit.units as units
from pipekit.traces import Trace, describe_bubbles


def time_scale(unit: str, longest: float) -> tuple[float, str]:
    """Return (factor, unit) that make a trace's times readable, if ``longest`` is among them."""
    return units.readable(longest, units.SECONDS) if unit == "s" else (1, unit)


def summary(trace: Trace, name: str | None = None) -> str:
    """Return a trace's title: its bubbles, makespan, and what kind of numbers they are.

    Args:
        trace: what is drawn.
        name: in place of the trace's own.
    """
    scale, unit = time_scale(trace.unit, trace.makespan_s)
    return (
        f"{name or trace.name}: {describe_bubbles(trace.bubbles())}, "
        f"{trace.makespan_s * scale:.4g} {unit} ({trace.label})"
    )
