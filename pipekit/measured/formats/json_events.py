"""Files of Chrome's trace events, by whoever wrote them."""

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

_GZIP = b"\x1f\x8b"


def is_json(path: Path) -> bool:
    """Return whether a file begins as JSON of trace events does, or is compressed by gzip."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(64)
    return begin.startswith(_GZIP) or begin.lstrip()[:1] in (b"{", b"[")


def content(path: Path) -> Any:
    """Return what stands in a JSON file, also one that is compressed by gzip.

    Raises:
        ValueError: it is not JSON, or cut off.
    """
    about = path.stat()
    return _content(path, about.st_mtime_ns, about.st_size)


@lru_cache(1)  # by what changes with the file, too: it may be recorded anew
def _content(path: Path, changed_ns: int, size: int) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}; is it cut off?") from None


def events(path: Path) -> list[dict[str, Any]]:
    """Return a file's trace events; none if it has no such list."""
    found = content(path)
    found = found.get("traceEvents", []) if isinstance(found, dict) else found
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []
