"""Timelines that play: an SVG in which passes grow as time goes on, for pages without scripts."""

from collections.abc import Iterator
from html import escape

from pipekit.plots import style
from pipekit.plots.events import as_trace, event_styles
from pipekit.schedules import Schedule
from pipekit.traces import Trace

PLAY_S, REST_S = 10.0, 3.0  # how long a run plays, and how long it then stands still
ROW_PX, BAR_PX, TITLE_PX, GAP_PX = 20, 17, 24, 12
LEFT_PX, WIDTH_PX, EDGE_PX = 58, 480, 3
"""Of the labels, of the picture (a phone shows three quarters of it), of an update at its end."""

INK = (
    "<style>.ink { fill: #59626d } "
    "@media (prefers-color-scheme: dark) { .ink { fill: #b3bcc6 } }</style>"
)
"""The text's colours, since no grey is read on light and on dark pages alike."""


def moving(*sources: Schedule | Trace) -> str:
    """Return an SVG in which each event grows as it runs, over and over.

    All sources share one clock, so that they must be in one unit.  What cannot play an animation
    shows the whole, as :func:`pipekit.plots.compare` does.

    Args:
        sources: at least one schedule or trace; their names are the titles.

    Raises:
        ValueError: there is no source, or they are in different units.
    """
    traces = [*map(as_trace, sources)]
    if len({trace.unit for trace in traces}) != 1:
        raise ValueError("moving() needs at least one source, and all of them in one unit of time")
    longest = max(trace.makespan_s for trace in traces)
    top, parts = 0, []
    for trace in traces:
        title = f"{trace.name}: bubble {trace.bubble:.1%} of makespan ({trace.label})"
        parts += [_text(0, top + 16, title, 13)]
        parts += _rows(trace, longest, top + TITLE_PX)
        top += TITLE_PX + trace.workers * ROW_PX + GAP_PX
    end = WIDTH_PX - EDGE_PX
    cursor = "".join(_animated(name, LEFT_PX, end, 0, 1) for name in ("x1", "x2"))
    now = (
        f'<line x1="{end}" x2="{end}" y1="{TITLE_PX}" y2="{top - GAP_PX}" '
        f'stroke="{style.GREY}">{cursor}</line>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {top}" '
        f'font-family="{style.NARROW_FONTS}">\n{INK}\n' + "\n".join([*parts, now]) + "\n</svg>\n"
    )


def _rows(trace: Trace, longest: float, top: float) -> Iterator[str]:
    scale = (WIDTH_PX - EDGE_PX - LEFT_PX) / longest
    for worker in range(trace.workers):
        y = top + worker * ROW_PX
        yield _text(0, y + 13, f"worker {worker}", 12)
        where = f'x="{LEFT_PX}" y="{y}" width="{trace.makespan_s * scale:.1f}" height="{BAR_PX}"'
        yield f'<rect {where} fill="{style.IDLE}"/>'
    looks, whose = event_styles(trace)
    for event, look in zip(trace.frame.itertuples(), whose, strict=True):
        looking = looks[look]
        x, y = LEFT_PX + event.start_s * scale, top + event.worker * ROW_PX
        begin, end = event.start_s / longest, event.end_s / longest
        width = max((event.end_s - event.start_s) * scale, looking.edge_px)
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_PX}" '
            f'fill="{looking.color}" stroke="{looking.edge}" stroke-width="{looking.edge_px / 2}">'
            f"{_animated('width', 0, width, begin, end)}</rect>"
        )
        if event.op != "UPDATE":
            middle = x + width / 2
            yield (  # it comes as the bar grows over its place
                f'<text x="{middle:.1f}" y="{y + 13}" font-size="11" text-anchor="middle" '
                f'fill="#1b1f24">{event.microbatch}'
                f"{_animated('opacity', 0, 1, (begin + end) / 2, end)}</text>"
            )


def _animated(what: str, low: float, high: float, begin: float, end: float) -> str:
    """Return an animation from ``low`` to ``high`` between two parts of the playing time."""
    playing = PLAY_S / (PLAY_S + REST_S)
    times = [0.0, begin * playing, max(end, begin) * playing, 1.0]
    values = [low, low, high, high]
    return (
        f'<animate attributeName="{what}" dur="{PLAY_S + REST_S:g}s" repeatCount="indefinite" '
        f'values="{";".join(f"{v:.4g}" for v in values)}" '
        f'keyTimes="{";".join(f"{t:.4g}" for t in times)}"/>'
    )


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" class="ink">{escape(text)}</text>'
