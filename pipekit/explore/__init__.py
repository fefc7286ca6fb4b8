"""Explorers for JupyterLab: move a slider, and the schedule, its timeline and its bytes follow."""

from pipekit.explore.page.canvas import TimelineCanvas, picture

__all__ = ["TimelineCanvas", "picture"]
