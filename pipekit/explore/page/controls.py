"""Sliders and menus, all of one width and with their units."""

from collections.abc import Iterable
from typing import Any

import ipywidgets as widgets

_STYLE = {"description_width": "132px"}
_LAYOUT = {"width": "auto", "min_width": "0"}


def whole(label: str, low: int, high: int) -> widgets.IntSlider:
    """Return a slider over whole numbers."""
    return widgets.IntSlider(
        value=low, min=low, max=high, description=label, style=_STYLE, layout=_LAYOUT
    )


def number(label: str, low: float, high: float, step: float) -> widgets.FloatSlider:
    """Return a slider over numbers."""
    return widgets.FloatSlider(
        value=low,
        min=low,
        max=high,
        step=step,
        description=label,
        readout_format=".2f",
        style=_STYLE,
        layout=_LAYOUT,
    )


def steps(label: str, options: Iterable[Any]) -> widgets.SelectionSlider:
    """Return a slider over some values, or (text, value) pairs."""
    return widgets.SelectionSlider(
        options=list(options), description=label, style=_STYLE, layout=_LAYOUT
    )


def choice(label: str, options: Iterable[Any]) -> widgets.Dropdown:
    """Return a menu of values, or (text, value) pairs."""
    return widgets.Dropdown(options=list(options), description=label, style=_STYLE, layout=_LAYOUT)
