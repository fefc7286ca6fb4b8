"""The widgets within a widget."""

from typing import Any


def inside(widget: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """Return all widgets of a kind in a widget."""
    found = [widget] if isinstance(widget, kind) else []
    return found + [
        each for child in getattr(widget, "children", ()) for each in inside(child, kind)
    ]
