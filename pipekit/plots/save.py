"""Figures as files that anyone can read: a picture, and the numbers in it."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

SVG: Any = {
    "svg.fonttype": "none",  # text stays text: searchable, and selectable
    "svg.hashsalt": "pipekit",  # the same figure gives the same bytes
    "hatch.linewidth": 0.7,
}


def save(
    figure: go.Figure, path_stem: str | os.PathLike[str], data: pd.DataFrame
) -> dict[str, Path]:
    """Write ``<stem>.svg`` and ``<stem>.csv``, making the folder if it is missing.

    The SVG is drawn from the plotly figure without a browser engine, and a figure saved again gives
    the same bytes. Only what matplotlib does not draw here is left to kaleido, if it is installed.

    Args:
        figure: of bars, lines, areas and markers, made by :mod:`pipekit.plots` or by plotly.
        path_stem: the files' path without its suffix.
        data: what the figure shows, say ``trace.frame``.

    Raises:
        ValueError: the figure holds what cannot be drawn, see :func:`pipekit.plots.check`.

    Returns:
        The paths written, under "svg" and "csv".
    """
    import matplotlib  # here, since what draws in the browser needs none of it

    from pipekit.plots import static
    from pipekit.plots.completion import check, not_drawn

    stem = Path(path_stem)
    paths = {suffix: stem.with_name(f"{stem.name}.{suffix}") for suffix in ("svg", "csv")}
    stem.parent.mkdir(parents=True, exist_ok=True)
    data.to_csv(paths["csv"], index=False)
    check(figure)
    if not_drawn(figure):
        figure.write_image(paths["svg"])
        return paths
    with matplotlib.rc_context(SVG):
        static.draw(figure).savefig(
            paths["svg"],
            format="svg",
            metadata={
                "Title": figure.layout.title.text or stem.name,
                "Creator": None,
                "Date": None,
            },
        )
    return paths
