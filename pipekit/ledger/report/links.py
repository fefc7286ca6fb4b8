"""Where a recorded value came from: the executed notebook's cell, the numbers, the line of code."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from pipekit.ledger.batches.article import anchor
from pipekit.ledger.outcomes import Record
from pipekit.ledger.report import source
from pipekit.reading import parse_json, read_text

_EXPERIMENTS = Path(__file__).parents[3] / "experiments"  # of a checkout
_LITERAL = re.compile(r'"([a-z0-9{][^"\s]*-[^"\s]+)"')


@dataclass(frozen=True)
class Link:
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
    code = named_at(record.id)
    if code is not None:
        path, line = code
        found.append(Link(source.href(path, line), f"{source.name(path)}:{line}"))
    return found


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
    with suppress(ValueError):  # somebody else's change: the notebook is linked all the same
        notebook = parse_json(read_text(executed), _Notebook)
        for number, cell in enumerate(notebook.cells, 1):
            for output in cell.outputs:
                for claim in re.findall(r"(?m)^[a-z ]+: ([^\s:]+): ", "".join(output.text)):
                    cells.setdefault(claim, (number, cell.id))
    return cells


class _Output(BaseModel):
    text: str | list[str] = ""


class _Cell(BaseModel):
    id: str = ""
    outputs: list[_Output] = []


class _Notebook(BaseModel):
    cells: list[_Cell]


def named_at(id: str) -> tuple[Path, int] | None:
    """Return the file and the line, from 1, of the code that names a claim.

    Some files name their claims without the paper, and ids made in a loop match their f-string:
    the one with most of the id spelt out counts.
    """
    named, made = _sources()
    names = id, id.partition("-")[2]
    for name in names:
        if name in named:
            return named[name]
    return next((place for pattern, place in made if any(map(pattern.fullmatch, names))), None)


def _says_more(parts: Sequence[str]) -> bool:
    """Return whether an f-string has more of an id than a paper's name or a single word of it."""
    _, _, rest = "".join(parts).partition("-")
    return "-" in rest or bool(rest and parts[0])


@functools.cache
def _sources() -> tuple[
    dict[str, tuple[Path, int]], list[tuple[re.Pattern[str], tuple[Path, int]]]
]:
    """Return where ids stand in the code, and f-strings that make some, the longest first."""
    named: dict[str, tuple[Path, int]] = {}
    made = []
    for path in sorted(_EXPERIMENTS.rglob("*.py")):
        for number, line in enumerate(read_text(path).splitlines(), 1):
            if ".load()[" in line:  # only looks the paper's own value up
                continue
            for literal in _LITERAL.findall(line):
                parts = re.split(r"\{[^}]*\}", literal)
                if len(parts) == 1:
                    named.setdefault(literal, (path, number))
                elif _says_more(parts):
                    pattern = re.compile(".+".join(map(re.escape, parts)))
                    made.append((pattern, (path, number), len("".join(parts))))
    made.sort(key=lambda each: -each[2])
    return named, [(pattern, place) for pattern, place, _ in made]
