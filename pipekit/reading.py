"""Reads JSON that somebody may have edited: it becomes what it should be, or one sentence."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def read_json(path: str | os.PathLike[str], shape: type[T], what: str) -> T:
    """Return a JSON file's content as a ``shape``.

    Args:
        path: the file.
        shape: a dataclass or a model of pydantic's; types are taken strictly.
        what: what the file should be, for the error.

    Raises:
        ValueError: it is none; the message names the file and the value in it.
        OSError: there is no such file, or it cannot be opened.
    """
    content = Path(path).read_bytes()
    try:
        return parse_json(content, shape)
    except ValueError as error:
        raise ValueError(f"{path} is not {what}: {error}") from None


def parse_json(content: str | bytes, shape: type[T]) -> T:
    """Return JSON text as a ``shape``.

    Raises:
        ValueError: it is none; the message names the first wrong value, ``layers[3].name`` say.
    """
    try:
        return TypeAdapter(shape).validate_json(content, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in wrong["loc"])
        message = wrong["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where.lstrip('.')}: {message}" if where else message) from None
