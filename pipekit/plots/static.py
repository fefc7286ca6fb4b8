"""A plotly figure, drawn again by matplotlib; plotly's own export needs a browser engine."""

from collections import defaultdict
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator, NullLocator

from pipekit.plots import completion, style

PT, ERROR_PX = 0.75, 2  # points in a CSS pixel; plotly's error bars
BAR_FONT_PX = 11, 8
"""Of a number in a bar: at best, and at least; one that does not fit is left out."""
CHARACTER_EM = 0.64  # how wide a digit is in DejaVu Sans, a wide font
TEXT_EM = 0.54  # how wide a title's character is there on average


def draw(figure: go.Figure) -> Figure:
    """Return the matplotlib figure of a plotly figure that :func:`.completion.check` passes."""
    figure = completion.completed(figure)
    _put_titles_in_one_line(figure)
    width, height = figure.layout.width, figure.layout.height
    canvas = Figure(figsize=(width / 96, height / 96), facecolor="none")
    panels: dict[tuple[str, str], Axes] = {}
    tops: dict[tuple[str, str], Any] = defaultdict(float)  # of a panel's stacked areas so far
    for trace in figure.data:
        key = trace.xaxis or "x", trace.yaxis or "y"
        if key not in panels:
            panels[key] = _panel(canvas, figure, *key)
        if trace.type == "bar":
            _bars(panels[key], trace, panels[key].bbox.width * 96 / canvas.dpi)
        elif trace.stackgroup:
            tops[key] = _area(panels[key], trace, tops[key])
        else:
            _scatter(panels[key], trace)
    _texts(canvas, figure)
    _legend(canvas, figure)
    return canvas


def _put_titles_in_one_line(figure: go.Figure) -> None:
    """Undo the breaks for phones, and their room: a static picture is wide."""
    layout = figure.layout
    breaks_px = style.TITLE_PX * (layout.title.text or "").count(style.BREAK)
    if breaks_px:
        layout.title.text = style.whole(layout.title.text)
        layout.title.pad.b -= breaks_px
    above = [note for note in layout.annotations if note.name == style.PANEL_TITLE]
    if breaks := max((note.text.count(style.BREAK) for note in above), default=0):
        # The titles of timelines one below another: each has the room of the longest.
        breaks_px = style.TITLE_PX * breaks
        all_px = layout.height - layout.margin.t - layout.margin.b
        less_px = all_px - breaks_px * (len(above) - 1)
        axes = sorted(figure.select_yaxes(), key=lambda axis: axis.domain)
        notes = sorted(above, key=lambda note: note.y)
        for below, (axis, note) in enumerate(zip(axes, notes, strict=True)):
            axis.domain = [(edge * all_px - breaks_px * below) / less_px for edge in axis.domain]
            note.update(text=style.whole(note.text), y=axis.domain[1])
    layout.margin.t -= breaks_px
    layout.height -= breaks_px * max(1, len(above))


def _place(figure: go.Figure, x: float, y: float) -> tuple[float, float]:
    """Turn plotly's paper coordinates into fractions of the whole figure."""
    layout = figure.layout
    width, height, margin = layout.width, layout.height, layout.margin
    return (
        (margin.l + x * (width - margin.l - margin.r)) / width,
        (margin.b + y * (height - margin.t - margin.b)) / height,
    )


def _panel(canvas: Figure, figure: go.Figure, x_ref: str, y_ref: str) -> Axes:
    x_axis = figure.layout["xaxis" + x_ref[1:]]
    y_axis = figure.layout["yaxis" + y_ref[1:]]
    (x0, x1), (y0, y1) = x_axis.domain or (0, 1), y_axis.domain or (0, 1)
    left, bottom = _place(figure, x0, y0)
    right, top = _place(figure, x1, y1)
    axes = canvas.add_axes((left, bottom, right - left, top - bottom), facecolor="none")
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for letter, axis in (("x", x_axis), ("y", y_axis)):
        is_log = axis.type == "log"
        if is_log:
            axes.set(**{f"{letter}scale": "log"})
        if axis.range is not None:
            axes.set(**{f"{letter}lim": np.power(10.0, axis.range) if is_log else axis.range})
    font_pt = figure.layout.font.size * PT
    _dress(axes.xaxis, x_axis, font_pt, 12, _counts(figure, "x", x_ref))
    _dress(axes.yaxis, y_axis, font_pt, 6, _counts(figure, "y", y_ref))
    return axes


def _counts(figure: go.Figure, letter: str, reference: str) -> bool:
    """Return whether all numbers on an axis are whole, so that ticks between them say nothing."""
    own = [
        trace[letter] for trace in figure.data if (trace[f"{letter}axis"] or letter) == reference
    ]
    return all(np.asarray(values).dtype.kind in "iu" for values in own)


def _dress(ours: Axis, theirs: Any, font_pt: float, most_ticks: int, counts: bool) -> None:
    if theirs.tickvals is not None:
        ours.set_ticks(theirs.tickvals, labels=theirs.ticktext)
    elif theirs.dtick is not None:
        ours.set_major_locator(MultipleLocator(theirs.dtick))
    elif theirs.type != "log":
        most = theirs.nticks or most_ticks + 1
        ours.set_major_locator(MaxNLocator(most - 1, steps=[1, 2, 5, 10], integer=counts))
    between = theirs.minor.dtick
    ours.set_minor_locator(MultipleLocator(between) if between else NullLocator())
    ours.set_tick_params(which="both", length=0)
    ours.set_tick_params(labelsize=font_pt, labelcolor=theirs.color or style.GREY)
    if theirs.tickangle:
        ours.set_tick_params(labelrotation=-theirs.tickangle)
    if theirs.showticklabels is False:
        ours.set_tick_params(labelleft=False, labelbottom=False)
    if theirs.showgrid is not False:
        ours.grid(which="both", color=_rgba(theirs.gridcolor or style.GRID), linewidth=0.8)
    if theirs.title.text:
        color = theirs.color or style.GREY
        ours.set_label_text(theirs.title.text, color=color, fontsize=font_pt)


def _bars(axes: Axes, trace: Any, width_px: float) -> None:
    upright = trace.orientation != "h"
    parts = (trace.x, trace.base, trace.y) if upright else (trace.y, trace.base, trace.x)
    y, base, length = (np.asarray(part, dtype=float) for part in parts)
    low, high = y - trace.width / 2, y + trace.width / 2
    corners = [(base, low), (base, high), (base + length, high), (base + length, low)]
    if upright:
        corners = [(across, along) for along, across in corners]
    marker = trace.marker
    bars = PolyCollection(
        list(np.array(corners).transpose(2, 0, 1)),  # a bar's [4, 2] each
        **_filled(marker.color, marker.pattern),
        edgecolor=_rgba(marker.line.color or marker.color),
        linewidth=marker.line.width * PT,
    )
    (bars.sticky_edges.y if upright else bars.sticky_edges.x).append(0)  # they stand on the axis
    axes.add_collection(bars)
    axes.autoscale_view()  # but for an axis whose range is set
    if trace.text is None:
        return
    best, least = BAR_FONT_PX
    left, right = axes.get_xlim()
    lengths_px = length / (right - left) * width_px
    characters = max(len(line) for text in trace.text for line in text.split("<br>"))
    for text, x, row, room in zip(trace.text, base + length / 2, y, lengths_px, strict=True):
        fitting = (room - 2) / (CHARACTER_EM * characters)
        if fitting >= least:
            axes.text(
                x,
                row,
                text.replace("<br>", "\n"),
                fontsize=min(best, fitting) * PT,
                linespacing=1.1,
                color=trace.insidetextfont.color,
                ha="center",
                va="center_baseline",
                clip_on=True,
            )


def _area(axes: Axes, trace: Any, floor: Any) -> Any:
    """Draw a stacked area and return its upper edge, on which the next one stands."""
    top = floor + np.asarray(trace.y, dtype=float)
    axes.fill_between(
        trace.x,
        floor,
        top,
        step="post" if trace.line.shape == "hv" else None,
        **_filled(trace.fillcolor, trace.fillpattern),
        linewidth=0,
    )
    return top


def _scatter(axes: Axes, trace: Any) -> None:
    if trace.fill == "toself":
        axes.fill(trace.x, trace.y, color=_rgba(trace.fillcolor), linewidth=0, zorder=1)
        return
    steps = trace.line.shape == "hv"
    axes.plot(trace.x, trace.y, drawstyle="steps-post" if steps else "default", **_strokes(trace))
    reach = {f"{axis}err": _reach(trace[f"error_{axis}"]) for axis in "xy"}
    if any(each is not None for each in reach.values()):
        width = (trace.error_x.thickness or trace.error_y.thickness or ERROR_PX) * PT
        look: Any = {"fmt": "none", "ecolor": _rgba(trace.marker.color), "elinewidth": width}
        axes.errorbar(trace.x, trace.y, **reach, **look)


def _reach(error: Any) -> Any:
    """Return how far error bars go below and above, or None where there are none."""
    if error.array is None:
        return None
    return error.array if error.arrayminus is None else (error.arrayminus, error.array)


def _strokes(trace: Any) -> dict[str, Any]:
    line, marker = trace.line, trace.marker
    look: dict[str, Any] = {"color": _rgba(line.color), "linestyle": "none"}
    if "lines" in trace.mode:
        look |= {"linestyle": completion.DASHES[line.dash], "linewidth": line.width * PT}
    if "markers" in trace.mode:
        look |= {"marker": completion.MARKERS[marker.symbol], "markersize": marker.size * PT}
        look |= {"markerfacecolor": _rgba(marker.color), "markeredgewidth": 0}
    return look


def _filled(color: str, pattern: Any) -> dict[str, Any]:
    *_, alpha = fill = _rgba(color)
    hatch = completion.HATCHES[pattern.shape or ""]
    # Lines are faint, for the text on them. In an SVG a shade fades its own lines, too: only black
    # ones are then seen, on light and on dark pages.
    lines = (*_rgba(pattern.fgcolor or color)[:3], 0.35) if alpha == 1 else (0, 0, 0, 0.9)
    return {"facecolor": fill, "hatch": hatch, "hatchcolor": lines}


def _fitting(figure: go.Figure, text: str, x: float, size: float) -> float:
    """Return the size at which a text from ``x`` on is not cut off by the picture's edge."""
    return min(size, (1 - x) * float(figure.layout.width) / (TEXT_EM * max(1, len(text))))


def _texts(canvas: Figure, figure: go.Figure) -> None:
    title = figure.layout.title
    if title.text:
        x, y = _place(figure, title.x, title.y)
        y += title.pad.b / figure.layout.height
        size = _fitting(figure, title.text, x, title.font.size)
        canvas.text(x, y, title.text, color=figure.layout.font.color, fontsize=size * PT)
    for note in figure.layout.annotations:
        x, y = _place(figure, note.x, note.y)
        size = note.font.size or figure.layout.font.size
        if note.xanchor == "left" and style.BREAK not in note.text:
            size = _fitting(figure, note.text, x, size)
        canvas.text(
            x + (note.xshift or 0) / figure.layout.width,
            y + (note.yshift or 0) / figure.layout.height,
            note.text.replace("<br>", "\n"),
            color=figure.layout.font.color,
            fontsize=size * PT,
            ha=note.xanchor,
            va="center" if note.yanchor == "middle" else note.yanchor,
        )


def _legend(canvas: Figure, figure: go.Figure) -> None:
    layout = figure.layout
    shown = completion.in_legend(figure)
    if not shown:
        return
    if layout.legend.orientation == "h":
        columns = completion.legend_columns(figure)
        place: dict[str, Any] = {"loc": "lower center", "ncols": columns, "columnspacing": 1.2}
    else:
        place = {"loc": "upper left", "bbox_to_anchor": _place(figure, 1, 1)}
    canvas.legend(
        handles=[_legend_handle(trace) for trace in shown],
        frameon=False,
        fontsize=layout.font.size * PT,
        labelcolor=layout.font.color,
        handlelength=2.6,
        borderaxespad=0.3,
        **place,
    )


def _legend_handle(trace: Any) -> Patch | Line2D:
    if trace.type == "bar":
        marker = trace.marker
        return Patch(
            label=trace.name,
            **_filled(marker.color, marker.pattern),
            edgecolor=_rgba(marker.line.color or marker.color),
            linewidth=min(marker.line.width, 1) * PT,
        )
    if trace.stackgroup:
        return Patch(label=trace.name, **_filled(trace.fillcolor, trace.fillpattern), linewidth=0)
    return Line2D([], [], label=trace.name, **_strokes(trace))


def _rgba(color: str) -> tuple[float, float, float, float]:
    """Read a CSS colour: a name, ``#rrggbb``, ``rgb(r,g,b)`` or ``rgba(r,g,b,a)``."""
    if color.startswith("rgb"):
        red, green, blue, *alpha = map(float, color.partition("(")[2][:-1].split(","))
        return red / 255, green / 255, blue / 255, alpha[0] if alpha else 1.0
    return to_rgba(color)
