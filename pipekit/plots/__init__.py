"""Pictures of schedules, runs and results: plotly figures, each saved as a static SVG and a CSV."""

from pipekit.plots.breakdown import breakdown as breakdown
from pipekit.plots.completion import check as check
from pipekit.plots.memory import memory as memory
from pipekit.plots.moving import moving as moving
from pipekit.plots.save import save as save
from pipekit.plots.save import svg as svg
from pipekit.plots.series import bands as bands
from pipekit.plots.series import curves as curves
from pipekit.plots.series import intervals as intervals
from pipekit.plots.series import points as points
from pipekit.plots.timeline import compare as compare
from pipekit.plots.timeline import timeline as timeline
