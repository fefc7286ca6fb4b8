"""Reads files that somebody may have edited: they become what they should be, or one sentence."""

import gzip
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
GZIP = b"\x1f\x8b"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text in which what a terminal would obey is written out."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def found(path: str | os.PathLike[str], what: str = "") -> Path:
    """Return a file's path; if there is none, a FileNotFoundError says ``what`` it should be."""
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}{what and f', which should be {what}'}")
    return Path(path)


def read_text(path: str | os.PathLike[str]) -> str:
    """Return a file's text, without a mark of its byte order; ValueError if it is not UTF-8."""
    try:
        return found(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from None


def read_bytes(path: str | os.PathLike[str], what: str = "") -> bytes:
    """Return the bytes of a file, unpacked if gzipped; ValueError if they are cut off."""
    content = found(path, what).read_bytes()
    if not content.startswith(GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}; is it cut off?") from None


def read_table(path: str | os.PathLike[str]) -> "pd.DataFrame":
    """Return a CSV file's rows; raise ValueError if it is no table."""
    import pandas as pd

    try:
        return pd.read_csv(found(path))
    except ValueError as error:  # pandas' own errors, and what is not UTF-8
        raise ValueError(f"{path} is not a table: {error}") from None


def read_json(
    path: str | os.PathLike[str],
    shape: type[T],
    what: str,
    form: str | None = None,
    required: Sequence[str] = (),
) -> T:
    """Return a JSON file's content as a ``shape``, a dataclass or a model of pydantic's.

    If its key "format" has to say ``form``, it has no keys but this and the shape's, and those that
    are ``required``.  A ValueError says that it is not ``what`` it should be, and the first fault.
    """
    content = read_bytes(path, what).removeprefix(BOM_UTF8)
    try:
        if form is None:
            return parse_json(content, shape)
        record = from_json(content, allow_inf_nan=False)
        if not isinstance(record, dict) or record.pop("format", None) != form:
            raise ValueError(f"it does not say {form!r}")
        if missing := [key for key in required if key not in record]:
            raise ValueError(f"{missing[0]!r} is missing")
        return parse_json(to_json(record), shape, exact=True)
    except ValueError as error:
        raise ValueError(f"{path} is not {what}: {error}") from None


def parse_json(content: str | bytes, shape: type[T], *, exact: bool = False) -> T:
    """Return JSON text as a ``shape``, strictly; if ``exact``, it has no other keys.

    A ValueError names the first wrong value, say ``layers[3].name``.
    """
    try:
        known = TypeAdapter(shape)
        return known.validate_json(content, strict=True, extra="forbid" if exact else None)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Return where the first wrong value stands, if it has a place, and what is wrong with it."""
    wrong = error.errors(include_url=False)[0]
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in wrong["loc"])
    message = wrong["msg"].removeprefix("Value error, ")
    return f"{where.lstrip('.')}: {message}" if where else message
