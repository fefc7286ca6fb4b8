"""Where runs' or workers' time went, as stacked bars."""

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style
from pipekit.traces.breakdown import CATEGORIES

BAR_PX = 40
CHARACTER_PX = 8
STYLES = {
    "computation": style.OPS["FORWARD"]._replace(name="computation"),
    "recompute": style.OPS["RECOMPUTE"],
    "update": style.OPS["UPDATE"]._replace(edge_px=1),
    "imbalance": style.Style("imbalance", "#CC79A7", "#8A3F69", 1, "x"),
    "bubble": style.Style("bubble", style.IDLE, style.GREY, 1, ""),
    "communication": style.Style("communication", "#0072B2", "#004C78", 1, "/"),
    "other": style.Style("other", style.GREY, "#424242", 1, "\\"),
}
"""Of each category; what also stands in a timeline is drawn as it is there."""
LEGIBLE = 4  # percent from which a part is wide enough for its number


def breakdown(shares: pd.DataFrame, *, title: str, label: str) -> go.Figure:
    """Draw a bar for each row of percentages, as in GPipe's Figure 4.

    Args:
        shares: what :meth:`pipekit.traces.Trace.breakdown` returns, or its rows "all" of several
            runs, one under another; the index names the bars, from the top.
        title, label: as for :func:`curves`.

    Raises:
        ValueError: there is no row, or a category is missing.
    """
    style.require(shares, CATEGORIES)
    names = [str(name) for name in shares.index]
    figure = go.Figure(layout=style.layout(BAR_PX * len(names), f"{title} ({label})"))
    starts = shares[CATEGORIES].cumsum(axis=1) - shares[CATEGORIES]
    places = list(range(len(names)))
    for category, look in STYLES.items():
        begin, length = starts[category].to_numpy(), shares[category].to_numpy()
        numbers = [f"{percent:.1f}" if percent >= LEGIBLE else "" for percent in length]
        bars = style.bar(look, places, begin, length, text=numbers if any(numbers) else None)
        hover = f"<b>{look.name}</b> %{{customdata:.2f}} %<extra></extra>"
        figure.add_trace({**bars, "customdata": length, "hovertemplate": hover})
    figure.update_xaxes(style.axis("share of all workers' time (%)"), range=[0, 100])
    figure.update_yaxes(style.rows(names))
    left_px = max(64, CHARACTER_PX * max(map(len, names)) + 16)
    return figure.update_layout(barmode="overlay", margin={"l": left_px})
