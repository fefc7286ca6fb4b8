"""An argument that must be one of a few values, checked where the user passes it."""

from collections.abc import Collection


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")
