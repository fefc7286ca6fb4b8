"""Figures of GPipe's Table 1 (section 4.1)."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from pipekit.papers.gpipe.memory import BUDGET_BYTES, COLUMNS, GB, Column
from pipekit.plots import style

ROW_PX = 22
END_GB = 12
"""Of the axis; what is longer is cut off there, and its number stands beside it."""


def accelerators(held: Mapping[str, pd.DataFrame], title: str, label: str) -> go.Figure:
    """Draw what every accelerator of every column holds, and the budget.

    The paper prints totals over the accelerators, of which the mean is marked.

    Args:
        held: by column of Table 1, what :func:`pipekit.papers.gpipe.memory.held` returns.
        title: what is shown, without the label.
        label: what the numbers are.
    """
    rows = pd.concat(held, names=["column", "accelerator"]).reset_index()
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
    means = [_printed_mean(name) for name in rows["column"]]
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


def _printed_mean(name: str) -> float:
    column = Column.of(name)
    return (column.parameter_gb + column.activation_gb) / column.setting.stages


def largest_networks(found: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return the paper's largest networks beside ours, as the rows of a figure.

    Args:
        found: parameters of the largest network by column, for each way to cut.

    Returns:
        A row for each pipeline and way: accelerators, parameters (billions), networks.
    """
    printed = {name: Column.of(name).parameters for name in COLUMNS}
    rows = [
        (Column.of(name).setting.stages, parameters / 1e9, way)
        for way, networks in {"paper": printed, **found}.items()
        for name, parameters in networks.items()
        if name.startswith("pipeline")
    ]
    return pd.DataFrame(rows, columns=["accelerators", "parameters", "networks"])
