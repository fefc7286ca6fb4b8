"""What a reader returns, and what several of them read: files of Chrome's trace events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.measured.messages import RULES, among
from pipekit.reading import GZIP, read_bytes


@dataclass(frozen=True)
class Recording:
    """What a file has, before steps and clocks are put in order.

    A row is an operation: worker, stage, kind (an op's name, or another), microbatch, step,
    start_s, end_s; replica, if the format says which of several pipelines it is of; moves and group
    as in :attr:`pipekit.Trace.other`, if it records communication.
    """

    rows: pd.DataFrame
    name: str  # of the file, for titles
    workers: int  # all that were recorded
    # step, start_s, end_s on the clock of ``rows``; with a row for each worker, or else they are
    # put one behind the other.  None: from first operation to last
    steps: pd.DataFrame | None = None
    own_clocks: bool = False  # whether each worker counts from its own start of each step
    notes: tuple[str, ...] = ()  # what reading left out

    @cached_property
    def passes(self) -> pd.DataFrame:
        """The rows that are ops of a schedule."""
        return self.rows[among(self.rows["kind"], RULES)]


def is_json(path: Path) -> bool:
    """Return whether a file begins as JSON of trace events does, or is compressed by gzip."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(64)
    return begin.startswith(GZIP) or begin.lstrip()[:1] in (b"{", b"[")


def files(path: Path) -> Iterator[Path]:
    """Yield the JSON files in a folder and below it, or the one file."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if (file == path or file.name.endswith((".json", ".json.gz"))) and is_json(file):
            yield file


def content(path: Path) -> Any:
    """Return what stands in a JSON file, also a gzipped one; ValueError if it is cut off."""
    about = path.stat()
    return _content(path, about.st_mtime_ns, about.st_size)


@lru_cache(1)  # by what changes with the file, too: it may be recorded anew
def _content(path: Path, changed_ns: int, size: int) -> Any:
    raw = read_bytes(path)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}; is it cut off?") from None


def head(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file is; empty if it is a list."""
    found = content(path)
    return found if isinstance(found, dict) else {}


def events(path: Path) -> list[dict[str, Any]]:
    """Return a file's trace events; none if it has no such list."""
    found = content(path)
    found = found.get("traceEvents", []) if isinstance(found, dict) else found
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []
