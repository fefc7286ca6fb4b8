"""Links from a record to its origin: the executed cell with its code, and the figure's numbers."""

import functools
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipekit.ledger.outcomes import Record
from pipekit.reading import parse_json, read_text


class Link(NamedTuple):
    """A file beside the report, and what to call it."""

    href: str
    text: str


def links(record: Record, folder: Path) -> list[Link]:
    """Return links from a report in ``folder`` to what there is of a record's origin."""
    found = []
    executed = record.folder.with_suffix(".ipynb")
    if executed.exists():
        found.append(_cell(executed, record.id, folder))
    if record.figure is not None:
        numbers = record.folder / Path(record.figure).with_suffix(".csv").name
        if numbers.exists():
            found.append(_link(numbers, folder, numbers.name))
    return found


def anchor(cell: str) -> str:
    """Return the fragment by which the address of a notebook's page leads to the cell of an id."""
    return f"cell-id={cell}"


def _link(path: Path, folder: Path, text: str, fragment: str = "") -> Link:
    return Link(Path(os.path.relpath(path, folder.resolve())).as_posix() + fragment, text)


def _cell(executed: Path, claim: str, folder: Path) -> Link:
    """Return a link to the cell of a claim, on the notebook's page if it has one."""
    page = executed.with_suffix(".html")
    shown = page if page.exists() else executed
    if claim not in _cells(executed):
        return _link(shown, folder, executed.name)
    number, id = _cells(executed)[claim]
    fragment = f"#{anchor(id)}" if shown is page else ""
    return _link(shown, folder, f"{executed.name}, cell {number}", fragment)


@functools.cache
def _cells(executed: Path) -> Mapping[str, tuple[int, str]]:
    """Return the number, from 1, and the id of the cell that printed each claim's outcome."""
    cells: dict[str, tuple[int, str]] = {}
    # Somebody else's change: the notebook is linked all the same.
    with suppress(ValueError, LookupError, AttributeError, TypeError):
        notebook = parse_json(read_text(executed), dict[str, Any])
        for number, cell in enumerate(notebook["cells"], 1):
            for output in cell.get("outputs", ()):
                told = "".join(output.get("text", ""))
                for claim in re.findall(r"(?m)^[a-z ]+: ([^\s:]+): ", told):
                    cells.setdefault(claim, (number, cell.get("id", "")))
    return cells
