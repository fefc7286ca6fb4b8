"""Pictures of schedules, runs and results: plotly figures, each saved as a static SVG and a CSV."""

from pipekit.plots.charts.bands import bands
from pipekit.plots.charts.breakdown import breakdown
from pipekit.plots.charts.curves import curves
from pipekit.plots.charts.grid import grid
from pipekit.plots.charts.intervals import intervals
from pipekit.plots.charts.points import points
from pipekit.plots.save import save
from pipekit.plots.timelines.in_flight import in_flight, in_flight_table
from pipekit.plots.timelines.memory import memory
from pipekit.plots.timelines.moving import moving
from pipekit.plots.timelines.timeline import compare, timeline

__all__ = [
    "bands",
    "breakdown",
    "compare",
    "curves",
    "grid",
    "in_flight",
    "in_flight_table",
    "intervals",
    "memory",
    "moving",
    "points",
    "save",
    "timeline",
]
