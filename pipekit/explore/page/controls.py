"""Sliders and menus, of one width and with their units; each function returns a control's maker.

An explorer declares its controls where it takes their values:
``stages: Annotated[int, whole("stages", 1, 8)] = 4``.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_type_hints

import ipywidgets as widgets
from traitlets import TraitError

Maker = Callable[[], widgets.ValueWidget]

_LOOK = {"style": {"description_width": "132px"}, "layout": {"width": "auto", "min_width": "0"}}


def whole(label: str, low: int, high: int) -> Maker:
    """Return a slider over whole numbers."""
    return partial(widgets.IntSlider, value=low, min=low, max=high, description=label, **_LOOK)


def number(label: str, low: float, high: float, step: float) -> Maker:
    """Return a slider over numbers."""
    ends = {"value": low, "min": low, "max": high, "step": step, "readout_format": ".2f"}
    return partial(widgets.FloatSlider, description=label, **ends, **_LOOK)


def steps(label: str, options: Iterable[Any]) -> Maker:
    """Return a slider over some values, or (text, value) pairs."""
    return partial(widgets.SelectionSlider, options=[*options], description=label, **_LOOK)


def choice(label: str, options: Iterable[Any]) -> Maker:
    """Return a menu of values, or (text, value) pairs."""
    return partial(widgets.Dropdown, options=[*options], description=label, **_LOOK)


def buttons(options: Iterable[Any]) -> Maker:
    """Return a button a value, or a (text, value) pair; one is down."""
    return partial(widgets.ToggleButtons, options=[*options], layout={"width": "auto"})


def count(label: str, low: int, high: int) -> Maker:
    """Return a field for a whole number."""
    return partial(widgets.BoundedIntText, description=label, min=low, max=high)


def entry(label: str) -> Maker:
    """Return a field for a text."""
    return partial(widgets.Text, description=label, continuous_update=False)


def declared(see: Callable[..., Any]) -> dict[str, Maker]:
    """Return the makers of a function's controls, by its arguments' names."""
    hints = get_type_hints(see, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if name != "return"}


def require_value(control: widgets.ValueWidget, value: Any) -> None:
    """Raise ValueError if a control cannot have this value; some would take the nearest one."""
    if isinstance(control, widgets.SelectionSlider | widgets.Dropdown | widgets.ToggleButtons):
        known = [option[1] if isinstance(option, tuple) else option for option in control.options]
        if value not in known:
            raise ValueError(
                f"{control.description} cannot be {value!r}: choose one of "
                f"{', '.join(map(str, known))}"
            )
        return
    ends = f": it goes from {control.min} to {control.max}" if hasattr(control, "max") else ""
    try:
        control.value = value
    except TraitError:
        raise ValueError(f"{control.description} cannot be {value!r}{ends}") from None
    if control.value != value:
        raise ValueError(f"{control.description} cannot be {value}{ends}")
