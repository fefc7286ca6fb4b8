"""Colours, patterns and layout, decided once: a colour means the same in every plot.

The colours are those of Okabe and Ito (2008), told apart with any kind of colour vision; patterns
and dashes repeat what they say, for greyscale.  Figures read as well on light pages as on dark.
"""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import pandas as pd

GREY = "#757575"
"""Text and axes: about 4.5:1 against white and against black."""
GRID = "rgba(117,117,117,0.25)"
IDLE = "rgba(117,117,117,0.23)"
TRANSPARENT = "rgba(0,0,0,0)"


class Style(NamedTuple):
    """How an event or a part of memory is drawn; ``edge`` is also the colour of its pattern."""

    name: str
    color: str
    edge: str
    edge_px: float
    pattern: str


OPS = {
    "FORWARD": Style("forward", "#56B4E9", "#2A7CAB", 1, ""),
    "BACKWARD": Style("backward", "#2FB58C", "#00704F", 1, "/"),
    "BACKWARD_INPUT": Style("backward, input", "#189470", "#00553C", 1, "\\"),
    "BACKWARD_WEIGHT": Style("backward, weights", "#A9DFCC", "#3D8F74", 1, "x"),
    "RECOMPUTE": Style("recompute", "#F0E442", "#A1971A", 1, "\\"),
    # An update takes no time in slots and little when measured: its edge keeps it visible.
    "UPDATE": Style("update", "#D55E00", "#D55E00", 2, ""),
}
"""The events of a timeline, in the order of the legend."""

OTHER = Style("other work", "#8763B8", "#54357F", 1, "x")
"""An op of your own."""

BESIDE = {
    "OFFLOAD": Style("offload", "#CC79A7", "#8A3F69", 0, ""),
    "LOAD": Style("load", "#8763B8", "#54357F", 0, ""),
    "UNSHARD": Style("gather weights", "#D55E00", "#7E3800", 0, ""),
    "REDUCE_GRAD": Style("sum gradients", "#E69F00", "#8F6200", 0, ""),
}
"""What runs beside a worker's own tasks."""


def of(op: str) -> Style:
    """Return the style of an op's events."""
    return OPS.get(op) or BESIDE.get(op) or OTHER._replace(name=op.lower().replace("_", " "))


# What an op makes or keeps has its style; an update also makes the optimizer's state.
PARTS = {
    "weights": OPS["UPDATE"]._replace(name="weights"),
    "gradients": OPS["BACKWARD"]._replace(name="gradients"),
    "optimizer": Style("optimizer", "#F5B58A", "#B04A00", 1, "x"),
    "activations": OPS["FORWARD"]._replace(name="activations"),
    "recompute": OPS["RECOMPUTE"]._replace(name="recomputed"),
}
"""The parts of memory, from the bottom."""

IDLE_STYLE = Style("idle", IDLE, GREY, 0, "")
WAITS_FOR_PASS = Style("waits for a pass", "rgba(117,117,117,0.35)", "#5A5A5A", 0, "/")
WAITS_FOR_MESSAGE = Style("waits for a message", "rgba(204,121,167,0.45)", "#A04A7A", 0, "x")
"""Idle time: a worker's beginning and end, and what it waits for between them."""
CAUSES = {
    "warm-up": Style("warm-up", "#D9D9D9", "#757575", 0, "\\"),
    "activation": Style("waits for an activation", "#D5ECF9", "#2A7CAB", 0, "/"),
    "gradient": Style("waits for a gradient", "#D3F0E6", "#00704F", 0, "\\"),
    "transfer": Style("transfer", "#CC79A7", "#8A3F69", 0, "x"),
    "sum": Style("waits for a sum", "#E69F00", "#8F6200", 0, "/"),
    "global stop": Style("global stop", "#D55E00", "#7E3800", 0, "x"),
    "other": Style("other", "#F0E442", "#A1971A", 0, "\\"),
    "drain": Style("drain", "#B8B8B8", "#757575", 0, "/"),
}
"""Idle time by :class:`pipekit.traces.Cause`, where causes are what a picture is about."""

SERIES_COLORS = ("#0072B2", "#E69F00", "#CC79A7", "#8763B8", "#8C6239", "#C0395B", GREY)
"""Curves and points of methods or runs: the colours that mean no op.  Grey comes last, since lines
to compare with are grey, too."""
SERIES_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SERIES_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "x")

FONT_PX = 13
WIDTH_PX = 960  # of a static figure, and what a notebook gives a live one, nearly
NARROW_FONTS = "Arial, Helvetica, Liberation Sans, sans-serif"  # for numbers in narrow bars
BREAK, TITLE_CHARACTERS, TITLE_PX = "<br>", 36, 20
"""Between lines of a title; what one has room for on a phone, beside the names of rows; height."""
PANEL_TITLE = "title"  # the name of an annotation that is the title of one of several panels
MARGIN_PX = {"l": 96, "r": 16, "t": 40, "b": 76}
AXIS_PX = 54  # of an axis below the panels, with its numbers and its title
PANEL_PX = WIDTH_PX - MARGIN_PX["l"] - MARGIN_PX["r"]


def whiter(color: str, part: float) -> str:
    """Return a colour ``#rrggbb`` of which ``part`` is replaced by white."""
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 * part + (1 - part) * each):02X}" for each in channels)


def faint(color: str, opacity: float) -> str:
    """Return a colour ``#rrggbb`` through which what lies below is seen."""
    channels = ",".join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))
    return f"rgba({channels},{opacity:g})"


def line(position: int) -> dict[str, Any]:
    """Return the plotly line of the curve at ``position``: the first 35 differ."""
    color = SERIES_COLORS[position % len(SERIES_COLORS)]
    return {"color": color, "dash": SERIES_DASHES[position % len(SERIES_DASHES)], "width": 2}


def marker(position: int) -> dict[str, Any]:
    """Return the plotly marker of the points at ``position``: the first 35 differ."""
    color = SERIES_COLORS[position % len(SERIES_COLORS)]
    return {"color": color, "symbol": SERIES_SYMBOLS[position % len(SERIES_SYMBOLS)], "size": 8}


def bar(
    look: Style,
    rows: Any,
    starts: Any,
    lengths: Any,
    *,
    width: float = 0.8,
    edges: float = 1.0,
    text: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return horizontal bars of one look, with text in them; ``edges`` scales edges' width."""
    return {
        "type": "bar",
        "name": look.name,
        "orientation": "h",
        "y": rows,
        "base": starts,
        "x": lengths,
        "width": width,
        "marker": {
            "color": look.color,
            "line": {"color": look.edge, "width": edges * look.edge_px},
            "pattern": pattern(look),
        },
        "text": text,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "black", "family": NARROW_FONTS},
        "textangle": 0,
    }


def rows(names: Sequence[str]) -> dict[str, Any]:
    """Return the vertical axis of rows of bars, the first on top."""
    places = list(range(len(names)))
    ends = [len(names) - 0.5, -0.5]
    return axis(tickvals=places, ticktext=list(names), showgrid=False, range=ends)


def pattern(look: Style) -> dict[str, Any]:
    """Return the plotly pattern on a bar or area of the style's colour."""
    return {
        "shape": look.pattern,
        "fillmode": "overlay",
        "fgcolor": look.edge,
        "fgopacity": 0.5,
        "size": 7,
        "solidity": 0.12,
    }


def layout(plot_px: float, title: str | None = None) -> dict[str, Any]:
    """Return the layout of a figure whose panels are ``plot_px`` high, with the title above."""
    lines = wrapped(title or "")
    breaks_px = TITLE_PX * lines.count(BREAK)
    margin = MARGIN_PX | {"t": MARGIN_PX["t"] + breaks_px}
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yref": "paper"}
    place |= {"yanchor": "bottom", "pad": {"b": 8 + breaks_px}}
    return {
        "template": "none",
        "title": {"text": lines, **place, "font": {"size": 15}} if title else None,
        "font": {"color": GREY, "size": FONT_PX},
        "height": plot_px + margin["t"] + margin["b"],
        "margin": margin,
        "paper_bgcolor": TRANSPARENT,
        "plot_bgcolor": TRANSPARENT,
        "legend": {
            "orientation": "h",
            "x": 0.5,
            "xanchor": "center",
            "y": -AXIS_PX / plot_px,  # below, it would lie on the axis where it takes several rows
            "yanchor": "top",
        },
        "hovermode": "closest",
        "modebar": {"bgcolor": TRANSPARENT, "color": GREY, "activecolor": GREY},
    }


def wrapped(title: str) -> str:
    """Return a title in lines, as plotly breaks none."""
    return BREAK.join(wrap(title, TITLE_CHARACTERS))


def whole(title: str) -> str:
    """Return a title in one line again."""
    return title.replace(BREAK, " ")


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a plotly axis in the one style."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": FONT_PX}} if title else None,
        "color": GREY,
        "gridcolor": GRID,
        "zeroline": False,
        "ticklabelstandoff": 4,
        **more,
    }


def require(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise ValueError unless a frame has rows to draw, and these columns."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks the column {missing[0]!r}; it has {[*frame.columns]}")
    if frame.empty:
        raise ValueError("the frame has no rows to draw")
