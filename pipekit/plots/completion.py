"""A plotly figure with all set that the static picture reads, or refused by name.

Names on an axis become places with ticks, and bars stand beside or on one another.
"""

from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from numbers import Real
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pipekit.plots import style

TRACES = "bar", "scatter"
MODES = {"lines", "markers", "lines+markers"}
FILLS = {None, "none", "toself"}
HATCHES = {"": None, "/": "///", "\\": "\\\\\\", "x": "xxx"}
MARKERS = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "x": "X"}
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (4.5, 2.5)),
    "dot": (0, (1.2, 1.8)),
    "dashdot": (0, (5, 2, 1.2, 2)),
    "longdash": (0, (8, 3)),
}
LAYOUT: dict[str, Any] = {
    "width": style.WIDTH_PX,
    "height": 450,
    "margin": {"l": 80, "r": 80, "t": 100, "b": 80},
    "font": {"size": 12, "color": style.GREY},
    "title": {"x": 0, "y": 1, "pad": {"b": 8}, "font": {"size": 17}},
}
SCATTER: dict[str, Any] = {
    "line": {"width": 2, "dash": "solid"},
    "marker": {"size": 6, "symbol": "circle"},
}
"""plotly's own, but for greys and the title's place."""
MARKED_POINTS, BARS = 20, 0.8
"""plotly's: a line of fewer points shows markers; bars take this share of a place."""
CHARACTER_EM, HANDLE_EM, TILTED = 0.62, 4.5, 30
"""Of a legend's entry, its letters and its handle; degrees of names that do not fit as ticks."""


def check(figure: go.Figure) -> None:
    """Refuse a figure that its SVG could not show; with kaleido installed there is none.

    Call it on a figure of made-up numbers before a training of hours.

    Raises:
        ValueError: it names all that cannot be shown.
    """
    if (named := not_drawn(figure)) and not find_spec("kaleido"):
        raise ValueError(
            f"the SVG of this figure cannot show {', '.join(named)}: leave it out, or install "
            "kaleido (pip install kaleido) and Chrome, which draw any plotly figure"
        )


def not_drawn(figure: go.Figure) -> list[str]:
    """Return the names of all in a figure that is left to kaleido."""
    return list(dict.fromkeys(_refused(figure)))


def completed(figure: go.Figure) -> go.Figure:
    """Return a copy of a figure with its defaults filled in; it raises as :func:`check` does."""
    check(figure)
    whole = go.Figure(layout=LAYOUT).update_layout(figure.layout)
    colors = figure.layout.colorway or figure.layout.template.layout.colorway or style.SERIES_COLORS
    for position, trace in enumerate(figure.data):
        color, name = colors[position % len(colors)], f"trace {position}"
        bar = {"marker": {"color": color, "line": {"width": 0}}}
        own = bar if trace.type == "bar" else _scatter(trace, color)
        whole.add_trace(type(trace)(name=name, **own).update(trace))
    for letter in "xy":
        _place_names(whole, letter)
    _place_bars(whole)
    _make_room_for_the_legend(whole)
    return whole


def in_legend(figure: go.Figure) -> list[Any]:
    """Return the traces that the legend shows, in its order; a single one needs none."""
    named = [trace for trace in figure.data if trace.showlegend is not False]
    asked = figure.layout.showlegend or any(trace.showlegend for trace in named)
    if figure.layout.showlegend is False or (len(named) < 2 and not asked):
        return []
    return sorted(named, key=lambda trace: trace.legendrank or 1000)


def legend_columns(figure: go.Figure) -> int:
    """Return how many entries of a legend below the panels stand side by side."""
    entries = [
        (HANDLE_EM + CHARACTER_EM * len(trace.name)) * figure.layout.font.size
        for trace in in_legend(figure)
    ]
    width = figure.layout.width
    return len(entries) if sum(entries) <= width else max(1, int(width // max(entries)))


def _refused(figure: go.Figure) -> Iterator[str]:
    for trace in figure.data:
        if trace.type not in TRACES:
            yield f"a trace of type {trace.type!r} (it draws {' and '.join(TRACES)})"
            continue
        for axis in "xy":
            values = trace[axis] if trace[axis] is not None else ()
            if not all(each is None or isinstance(each, Real | str) for each in values):
                yield f"dates on {axis}"
        if trace.type == "bar":
            if trace.error_x.array is not None or trace.error_y.array is not None:
                yield "error bars on bars"
            if trace.orientation != "h" and trace.text is not None:
                yield "text on upright bars"
            continue
        if trace.mode not in MODES | {None} and trace.stackgroup is None:
            yield f"a scatter in mode {trace.mode!r}"
        if trace.fill not in FILLS and trace.stackgroup is None:
            yield f"the fill {trace.fill!r}"
        marker = trace.marker
        if any(np.ndim(each) for each in (marker.size, marker.color, marker.symbol)):
            yield "markers of several sizes, colours or symbols in one trace"
        elif marker.symbol not in (None, *MARKERS):
            yield f"the marker {marker.symbol!r}"
        if trace.line.dash not in (None, *DASHES):
            yield f"the dash {trace.line.dash!r}"
    for name in ("shapes", "images"):
        if figure.layout[name]:
            yield f"the layout's {name}"


def _scatter(trace: Any, color: str) -> dict[str, Any]:
    places = np.arange(len(trace.y)) if trace.x is None else trace.x
    inked = {"color": trace.line.color or trace.marker.color or color}
    return {
        "x": places,
        "mode": "lines+markers" if len(places) < MARKED_POINTS else "lines",
        **{part: given | inked for part, given in SCATTER.items()},
    }


def _place_names(figure: go.Figure, letter: str) -> None:
    """Turn names on the axes of a letter into places, each name once, in their order."""
    of_axis = defaultdict[str, list[Any]](list)
    for trace in figure.data:
        of_axis[trace[f"{letter}axis"] or letter].append(trace)
    for reference, traces in of_axis.items():
        values = [value for trace in traces for value in trace[letter]]
        if not any(isinstance(value, str) for value in values):
            continue
        places = {name: place for place, name in enumerate(dict.fromkeys(map(str, values)))}
        for trace in traces:
            trace[letter] = np.array([places[str(value)] for value in trace[letter]], dtype=float)
        axis = figure.layout[f"{letter}axis{reference[1:]}"]
        axis.update(type="linear", tickvals=list(places.values()), ticktext=list(places))
        letters = CHARACTER_EM * figure.layout.font.size
        longest, margin = letters * max(map(len, places)), figure.layout.margin
        if letter == "y":
            margin.l = max(margin.l, longest + 30)
        elif letters * sum(len(name) + 2 for name in places) > figure.layout.width / len(of_axis):
            axis.tickangle = TILTED
            margin.b = max(margin.b, longest / 2 + 60)


def _place_bars(figure: go.Figure) -> None:
    """Give bars without a base or a width theirs: beside one another, or as ``barmode`` says."""
    together = defaultdict[Any, list[Any]](list)
    for trace in figure.data:
        if trace.type == "bar" and (trace.base is None or trace.width is None):
            together[trace.xaxis, trace.yaxis, trace.orientation].append(trace)
    stacked = figure.layout.barmode in ("stack", "relative")
    for bars in together.values():
        along, across = ("x", "y") if bars[0].orientation == "h" else ("y", "x")
        share = BARS if stacked else BARS / len(bars)
        tops: dict[float, float] = defaultdict(float)
        for position, trace in enumerate(bars):
            places = np.asarray(trace[across], dtype=float)
            lengths = np.asarray(trace[along], dtype=float)
            trace.base = np.array([tops[place] if stacked else 0.0 for place in places])
            for place, length in zip(places, lengths, strict=True):
                tops[place] += length
            offset = 0.0 if stacked else (position - (len(bars) - 1) / 2) * share
            trace.update({across: places + offset, "width": np.full(len(places), share)})


def _make_room_for_the_legend(figure: go.Figure) -> None:
    layout, shown = figure.layout, in_legend(figure)
    if not shown:
        return
    letters = layout.font.size
    if layout.legend.orientation == "h":
        rows = -(-len(shown) // legend_columns(figure))
        more = 1.6 * letters * (rows - 1)
        layout.margin.b += more
        layout.height += more
    else:
        longest = max(len(trace.name) for trace in shown)
        layout.margin.r = max(layout.margin.r, letters * (HANDLE_EM + CHARACTER_EM * longest))
