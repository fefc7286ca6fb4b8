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


def written_as(control: widgets.ValueWidget, value: Any) -> Any:
    """Return the value of a control that is this one, or has this text, as in a link."""
    if isinstance(control, widgets.SelectionSlider | widgets.Dropdown):
        known = [option[1] if isinstance(option, tuple) else option for option in control.options]
        for each in known:
            if value == each or str(value) == str(each):
                return each
        raise ValueError(
            f"{control.description} cannot be {value!r}: choose one of {', '.join(map(str, known))}"
        )
    kind = type(control.value)
    try:
        found = kind(value)
    except ValueError as error:
        raise ValueError(f"{control.description} cannot be {value!r}") from error
    if hasattr(control, "max") and not control.min <= found <= control.max:
        raise ValueError(
            f"{control.description} cannot be {value}: it goes from {control.min} to {control.max}"
        )
    return found
