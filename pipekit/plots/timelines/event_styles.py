"""How a trace's events look: by what they are, and which of its worker's stages they belong to."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.plots import style
from pipekit.schedules import Op
from pipekit.traces import RECOMPUTE, Cause, Trace

GAP_STYLES = {
    **dict.fromkeys((Cause.WARM_UP, Cause.DRAIN, Cause.OTHER), style.IDLE_STYLE),
    **dict.fromkeys((Cause.ACTIVATION, Cause.GRADIENT), style.WAITS_FOR_PASS),
    **dict.fromkeys((Cause.TRANSFER, Cause.SUM, Cause.GLOBAL_STOP), style.WAITS_FOR_MESSAGE),
}
"""The style of the gaps between events, by what the worker waits for."""
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
    codes, ops = pd.factorize(trace.frame["op"])
    places = np.where((ops == "UPDATE")[codes], 0, _places(trace.frame))
    stride = 1 + places.max()
    keys, key_of = np.unique(codes * stride + places, return_inverse=True)
    named = [(ops[key // stride], int(key % stride)) for key in keys]
    order = sorted(range(len(named)), key=lambda key: _last_updates(named[key]))
    most = max(1, stride - 1)
    found = [_lighter(style.OPS[op], place / most) for op, place in map(named.__getitem__, order)]
    return found, np.argsort(order)[key_of].astype(np.int32)


def _places(frame: pd.DataFrame) -> NDArray[np.intp]:
    """Return for each event which of its worker's stages it belongs to, counted from 0."""
    worker, stage = (frame[name].to_numpy(np.intp) for name in ("worker", "stage"))
    stride = 1 + stage.max()
    pairs, pair_of = np.unique(worker * stride + stage, return_inverse=True)
    workers = pairs // stride
    places: NDArray[np.intp] = np.arange(len(pairs)) - np.searchsorted(workers, workers)
    return places[pair_of]


def letters(trace: Trace, kinds: NDArray[np.int32]) -> list[str]:
    """Return the letter that a picture has for the events of each style.

    Args:
        trace: as for :func:`event_styles`.
        kinds: what that returned.
    """
    _, first = np.unique(kinds, return_index=True)
    ops = trace.frame["op"].iloc[first]
    return ["R" if op == RECOMPUTE else Op[op].value for op in ops]


def _last_updates(key: tuple[str, int]) -> tuple[bool, int, int]:
    op, place = key
    return op == "UPDATE", place, list(style.OPS).index(op)


def _lighter(look: style.Style, lightness: float) -> style.Style:
    if not lightness:
        return look
    name = f"{look.name}, later stage"
    return look._replace(name=name, color=style.whiter(look.color, _LIGHTEST * lightness))
