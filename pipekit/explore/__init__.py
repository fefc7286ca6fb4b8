"""Explorers for JupyterLab: move a slider, and the schedule, its timeline and its bytes follow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipekit.explore.browser.widgets import TimelineCanvas

__all__ = ["TimelineCanvas"]


def __getattr__(name: str) -> Any:
    """Import the widget when it is first used: pages without a kernel need no widgets."""
    if name != "TimelineCanvas":
        raise AttributeError(f"module 'pipekit.explore' has no attribute {name!r}")
    from pipekit.explore.browser.widgets import TimelineCanvas

    return TimelineCanvas
