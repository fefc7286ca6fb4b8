"""Pictures of schedules, runs and results: plotly figures, each saved as a static SVG and a CSV."""

from pipekit.plots.breakdown import breakdown
from pipekit.plots.completion import check
from pipekit.plots.memory import memory
from pipekit.plots.moving import moving
from pipekit.plots.save import save, svg
from pipekit.plots.series import bands, curves, intervals, points
from pipekit.plots.timeline import compare, timeline

__all__ = [
    "bands",
    "breakdown",
    "check",
    "compare",
    "curves",
    "intervals",
    "memory",
    "moving",
    "points",
    "save",
    "svg",
    "timeline",
]
