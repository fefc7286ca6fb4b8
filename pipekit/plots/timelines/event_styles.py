"""How a trace's events look: by what they are, and which of its worker's stages they belong to."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.plots import style
from pipekit.schedules import Op
from pipekit.traces import RECOMPUTE, Trace

_LIGHTEST = 0.65
"""How much white the last stage of a worker has."""


def event_styles(trace: Trace) -> tuple[list[style.Style], NDArray[np.int32]]:
    """Return the styles that a trace's events have, in the order to draw them, and whose is which.

    An op has one style, but that where workers have several stages the passes of the second stage,
    and so on, are lighter each, as in Megatron-LM's figures of interleaved schedules.

    Args:
        trace: at least one event.

    Returns:
        The styles, and for each event the position of its own.
    """
    frame = trace.frame
    places = frame.groupby("worker")["stage"].rank(method="dense").to_numpy(np.int32) - 1
    places[frame["op"] == "UPDATE"] = 0
    keys = pd.MultiIndex.from_arrays([frame["op"], places])
    order = sorted(set(keys), key=_last_updates)
    kinds = pd.Series(range(len(order)), pd.MultiIndex.from_tuples(order))
    most = max(1, places.max())
    found = [_lighter(style.OPS[op], place / most) for op, place in order]
    return found, kinds[keys].to_numpy(np.int32)


def letters(trace: Trace, kinds: NDArray[np.int32]) -> list[str]:
    """Return the letter that a picture has for the events of each style.

    Args:
        trace: as for :func:`event_styles`.
        kinds: what that returned.
    """
    ops = trace.frame["op"].groupby(kinds).first()
    return ["R" if op == RECOMPUTE else Op[op].value for op in ops]


def _last_updates(key: tuple[str, int]) -> tuple[bool, int, int]:
    op, place = key
    return op == "UPDATE", place, list(style.OPS).index(op)


def _lighter(look: style.Style, lightness: float) -> style.Style:
    if not lightness:
        return look
    name = f"{look.name}, later stage"
    return look._replace(name=name, color=style.whiter(look.color, _LIGHTEST * lightness))
