"""Who computes what when: a row a worker, a bar an event, as the papers draw it."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipekit.plots import style
from pipekit.plots.events import as_trace, bars, summary, time_scale
from pipekit.schedules import Schedule
from pipekit.traces import Trace

MOST_EVENTS, MOST_LINES = 20_000, 30
NUMBER_PX, LEAST_NUMBER_PX = 12, 8
DIGIT_EM = 0.6  # how wide a digit is: 0.56 in Arial, more in what may replace it
GAP_PX = 84  # between two timelines: the upper one's axis and the lower one's title


def timeline(
    source: Schedule | Trace, *, title: str | None = None, versions: bool = False
) -> go.Figure:
    """Draw a schedule in time slots, or a trace in its own time.

    Bars carry the microbatch (from 0), where there is room.  The title gives the three bubbles
    (:meth:`Trace.bubbles`), the makespan, and whether they are measured, simulated or exact.

    Args:
        source: what to draw.
        title: in place of the source's name.
        versions: also write the weight version that a pass reads, as PipeDream-2BW's Figure 2 does.

    Raises:
        ValueError: the source has no events, or more than 20,000.
        ScheduleError: the schedule's workers would wait for one another for ever.
    """
    trace = as_trace(source)
    return _draw([trace], versions, title=summary(trace, title))


def compare(
    *sources: Schedule | Trace, titles: Sequence[str] | None = None, versions: bool = False
) -> go.Figure:
    """Draw timelines one under another; those in the same unit share one time scale.

    Args:
        sources: at least one schedule or trace, say a schedule and the run of it.
        titles: one a source, in place of the sources' names.
        versions: as for :func:`timeline`.

    Raises:
        ValueError: as for :func:`timeline`; or there is no source, or not one title for each.
    """
    if not sources:
        raise ValueError("compare() needs at least one schedule or trace")
    if titles is not None and len(titles) != len(sources):
        raise ValueError(f"give one title a source: {len(sources)}, not {len(titles)}")
    traces = [as_trace(source) for source in sources]
    names: Sequence[str | None] = titles or [None] * len(traces)
    lines = [style.wrapped(summary(*each)) for each in zip(traces, names, strict=True)]
    figure = _draw(traces, versions, max(text.count(style.BREAK) for text in lines))
    for row, text in enumerate(lines, start=1):
        top = next(figure.select_yaxes(row=row)).domain[1]
        figure.add_annotation(
            text=text,
            name=style.PANEL_TITLE,
            align="left",
            font={"size": 15},
            showarrow=False,
            **{"x": 0, "xref": "paper", "xanchor": "left"},
            **{"y": top, "yref": "paper", "yanchor": "bottom", "yshift": 8},
        )
    return figure


def _draw(
    traces: Sequence[Trace], versions: bool, breaks: int = 0, title: str | None = None
) -> go.Figure:
    events = sum(len(trace.frame) for trace in traces)
    if events > MOST_EVENTS:
        raise ValueError(
            f"a timeline shows at most {MOST_EVENTS:,} events, not {events:,}; draw fewer batches, "
            f"or a slice: dataclasses.replace(trace, frame=trace.frame.query('start_s < 1'))"
        )
    heights = [trace.workers * max(20, min(44, 640 / trace.workers)) for trace in traces]
    gap_px = GAP_PX + style.TITLE_PX * breaks
    plot_px = sum(heights) + gap_px * (len(traces) - 1)
    figure = make_subplots(
        rows=len(traces),
        row_heights=[height / sum(heights) for height in heights],
        vertical_spacing=gap_px / plot_px if len(traces) > 1 else 0,
    )
    figure.update_layout(style.layout(plot_px, title), barmode="overlay")
    figure.layout.margin.t += style.TITLE_PX * breaks
    figure.layout.height += style.TITLE_PX * breaks
    in_legend: set[str] = set()
    first_axis: dict[str, str] = {}
    for row, trace in enumerate(traces, start=1):
        peers = [other for other in traces if other.unit == trace.unit]
        scale, unit = time_scale(trace.unit, max(peer.makespan_s for peer in peers))
        for bar in bars(trace, scale, unit, versions):
            bar.showlegend = bar.showlegend is not False and bar.name not in in_legend
            in_legend.add(bar.name)
            figure.add_trace(bar, row=row, col=1)
        start = min(peer.span_s[0] for peer in peers) * scale
        end = max(peer.span_s[1] for peer in peers) * scale
        pad = 0.004 * (end - start)
        # A line a slot, and numbers where there is room: on a phone plotly would turn all of them.
        lines = {"dtick": 1, "showgrid": True, "gridcolor": style.GRID}
        slots = trace.unit == "slots" and end - start <= MOST_LINES
        figure.update_xaxes(
            style.axis(f"time ({unit})", range=[start - pad, end + pad]),
            minor=lines if slots else None,
            matches=first_axis.get(trace.unit),
            row=row,
        )
        first_axis.setdefault(trace.unit, f"x{row}" if row > 1 else "x")
        figure.update_yaxes(style.rows([f"worker {w}" for w in range(trace.workers)]), row=row)
    _fit_numbers(figure)
    return figure


def _fit_numbers(figure: go.Figure) -> None:
    """Size the numbers so that each op's narrowest bar holds its own, or let plotly hide some."""
    numbered = [bar for bar in figure.data if bar.text]
    sizes = []
    for bar in numbered:
        left, right = figure.layout["xaxis" + bar.xaxis[1:]].range
        room_px = float(bar.x.min()) / (right - left) * style.PANEL_PX - 2
        characters = max(len(line) for text in bar.text for line in text.split("<br>"))
        sizes.append(min(NUMBER_PX, room_px / (DIGIT_EM * characters)))
    fits = min(sizes, default=NUMBER_PX) >= LEAST_NUMBER_PX
    for bar, size in zip(numbered, sizes, strict=True):
        bar.insidetextfont.size = size if fits else NUMBER_PX
        bar.constraintext = "none" if fits else "inside"
    if not fits:
        figure.update_layout(uniformtext={"minsize": LEAST_NUMBER_PX, "mode": "hide"})
