"""What somebody may put where a reader expects one of our files: damaged, huge, deep, binary."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

HUGE = 10**400
DEEP = 100_000

scalars = st.sampled_from(
    [None, True, -1, 0, 1.5, HUGE, -HUGE, 10**12, 1e308, "", "x", "../x", "/x", "\0", "9" * 5000]
)
values = scalars | st.sampled_from([[], {}, [[]], [None], {"a": 1}, float("nan"), float("inf")])
nothing = st.sampled_from(
    [b"", b"\xff\xfe", b"null", b"[]", b"{}", b"[" * DEEP, b'{"a":' * DEEP, b"9" * 5000, b"\0" * 9]
)


def damaged_json(good: Any) -> st.SearchStrategy[bytes]:
    """Return files in which one value of ``good`` is another, or missing, or none is left."""
    return nothing | st.builds(
        _damage, st.just(good), st.sampled_from(_paths(good)), values | _GONE
    )


def damaged_text(good: str) -> st.SearchStrategy[bytes]:
    """Return files in which some characters of ``good`` are others."""
    odd = st.sampled_from(
        ["", "\0", "\n", ",", '"', "-", "9" * 30, "9" * 5000, "\u2028", "٣", "\x85"]
    )
    cuts = st.lists(st.integers(0, len(good)), min_size=2, max_size=2).map(sorted)
    text = st.builds(lambda cut, new: good[: cut[0]] + new + good[cut[1] :], cuts, odd)
    return nothing | text.map(str.encode)


def read_or_refuse(read: Callable[[Path], object], content: bytes, path: Path) -> None:
    """Read a file: what it raises, if anything, is an error of ours that names the file."""
    path.write_bytes(content)
    try:
        read(path)
        said = path.name
    except ValueError as error:
        said = f"{error}"
    assert path.name in said


_MISSING = object()
_GONE = st.just(_MISSING)


def _paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the way to every value within a value."""
    named = dict(enumerate(value)) if isinstance(value, list) else value
    inside = named.items() if isinstance(named, dict) else ()
    return [(), *((key, *path) for key, each in inside for path in _paths(each))]


def _damage(good: Any, path: tuple[Any, ...], value: Any) -> bytes:
    if not path:
        return b"" if value is _MISSING else json.dumps(value).encode()
    damaged = copy.deepcopy(good)
    holder = damaged
    for key in path[:-1]:
        holder = holder[key]
    if value is _MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return json.dumps(damaged).encode()
