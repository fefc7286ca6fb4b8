"""An argument that must be one of a few values, checked where the user passes it."""

from collections.abc import Collection
from difflib import get_close_matches


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``; the message has the closest."""
    if value not in choices:
        known = [*map(str, choices)]
        close = get_close_matches(str(value), known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}{meant}")
