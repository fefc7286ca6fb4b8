"""Explorers for JupyterLab: move a slider, and the schedule, its timeline and its bytes follow."""

from pipekit.explore.browser.widgets import TimelineCanvas

__all__ = ["TimelineCanvas"]
