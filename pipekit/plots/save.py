"""Figures as files that anyone can read: a picture, and the numbers in it."""

import os
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import style

SVG: Any = {
    "svg.fonttype": "none",  # text stays text: searchable, and selectable
    "svg.hashsalt": "pipekit",  # the same figure gives the same bytes
    "hatch.linewidth": 0.7,
}


def save(
    figure: go.Figure, path_stem: str | os.PathLike[str], data: pd.DataFrame
) -> dict[str, Path]:
    """Write ``<stem>.svg`` and ``<stem>.csv``, making the folder if it is missing.

    The SVG is drawn without a browser engine, and again with the same bytes.  Only what matplotlib
    does not draw here is left to kaleido, if it is installed.  It returns the paths written, under
    "svg" and "csv".

    Args:
        figure: of bars, lines, areas and markers, made by :mod:`pipekit.plots` or by plotly.
        path_stem: the files' path; ".svg" may be at its end.
        data: what the figure shows, say ``trace.frame``.

    Raises:
        ValueError: the figure holds what cannot be drawn, see :func:`pipekit.plots.check`.
    """
    from pipekit.plots.completion import check, not_drawn

    stem = Path(os.fspath(path_stem).removesuffix(".svg"))
    paths = {suffix: stem.with_name(f"{stem.name}.{suffix}") for suffix in ("svg", "csv")}
    stem.parent.mkdir(parents=True, exist_ok=True)
    data.to_csv(paths["csv"], index=False)
    check(figure)
    if not_drawn(figure):
        figure.write_image(paths["svg"])
    else:
        paths["svg"].write_text(svg(figure, stem.name), encoding="utf-8")
    return paths


def svg(figure: go.Figure, name: str = "figure") -> str:
    """Return a plotly figure as SVG, drawn and refused as :func:`save` does.

    ``figure`` is of bars, lines, areas and markers; ``name`` is that of one without a title.
    """
    import matplotlib  # here, since what draws in the browser needs none of it

    from pipekit.plots import static

    told = {"Title": style.whole(figure.layout.title.text or name), "Creator": None, "Date": None}
    with matplotlib.rc_context(SVG), StringIO() as file:
        static.draw(figure).savefig(file, format="svg", metadata=told)
        return file.getvalue()
