"""The figure of GPipe's Table 1 (section 4.1)."""

import pandas as pd
import plotly.graph_objects as go

from pipekit.papers.gpipe.memory import BUDGET_BYTES, GB, Column
from pipekit.plots import style

ROW_PX = 22
END_GB = 12
"""Of the axis; what is longer is cut off there, and its number stands beside it."""


def accelerators(rows: pd.DataFrame, title: str, label: str) -> go.Figure:
    """Draw what every accelerator of every column holds, and the budget.

    The paper prints totals over the accelerators, of which the mean is marked.

    Args:
        rows: what :func:`pipekit.papers.gpipe.memory_table.accelerators` returns.
        title: what is shown, without the label.
        label: what the numbers are.
    """
    places = list(range(len(rows)))
    figure = go.Figure(layout=style.layout(ROW_PX * len(rows), f"{title} ({label})"))
    figure.layout.margin.l = 168  # names and totals stand beside the bars
    base = pd.Series(0.0, index=rows.index)
    for part, look in (
        ("parameters", style.PARTS["weights"]._replace(name="parameters, 12 bytes each")),
        ("activations", style.PARTS["activations"]),
    ):
        figure.add_bar(
            name=look.name,
            orientation="h",
            y=places,
            base=base.to_numpy(),
            x=rows[part].to_numpy(),
            width=0.8,
            marker={
                "color": look.color,
                "line": {"color": look.edge, "width": 1},
                "pattern": style.pattern(look),
            },
        )
        base = base + rows[part]
    ends = [-0.6, len(rows) - 0.4]
    figure.add_scatter(
        name=f"budget, {BUDGET_BYTES / GB:g} GB",
        mode="lines",
        x=[BUDGET_BYTES / GB] * 2,
        y=ends,
        line={"color": style.GREY, "dash": "dash", "width": 1.5},
    )
    means = [Column.of(name).mean_gb for name in rows["column"]]
    figure.add_scatter(
        name="mean of the column (paper)",
        mode="markers",
        x=means,
        y=places,
        marker={"color": style.GREY, "symbol": "diamond", "size": 8},
    )
    names = [
        f"{row.column}, {row.accelerator}: {row.total:.1f}" for row in rows.itertuples(index=False)
    ]
    figure.update_xaxes(style.axis("GB at most on each accelerator", range=[0, END_GB]))
    figure.update_yaxes(
        style.axis(range=ends[::-1], tickvals=places, ticktext=names, showgrid=False)
    )
    return figure
