"""An argument that must be one of a few values, or of a kind, checked where the user passes it."""

from collections.abc import Collection
from difflib import get_close_matches

MOST_LISTED = 40
ALSO_CALLED = {
    "1f1b": "flush",
    "dapple": "flush",
    "pipedream-flush": "flush",
    "pipedream-2bw": "2bw",
    "zero-bubble": "zb-h1",
    "processes": "distributed",
}
"""Other names of methods and transports, in papers and in other tools."""


def require_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``; the message has the closest.

    None is a choice that nobody writes.
    """
    if value not in choices:
        known = [str(choice) for choice in choices if choice is not None]
        listed = ", ".join(known) if len(known) <= MOST_LISTED else f"{len(known)} names"
        raise ValueError(f"{name} must be one of {listed}, not {value!r}{meant(value, known)}")


def require_kind(name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError unless ``value`` is of a kind; the message has an example."""
    if not isinstance(value, kind):
        given = type(value).__name__
        raise TypeError(f"{name} must be a {kind.__name__}, e.g. {example}, not {given}")


def meant(value: object, known: Collection[str]) -> str:
    """Return the end of a refusal: the closest name that is known, or nothing."""
    spelt = {each.casefold(): each for each in known}
    spelt |= {other: each for other, each in ALSO_CALLED.items() if each in known}
    text = str(value).casefold()
    longer = [name for name in spelt if text and name.startswith(text)]
    close = longer or get_close_matches(text, spelt, 1)
    return f"; did you mean {spelt[close[0]]!r}?" if close else ""
