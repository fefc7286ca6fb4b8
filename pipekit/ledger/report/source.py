"""A file of code as a page beside the report, since a browser finds no line in the file itself."""

from pathlib import Path, PurePosixPath

from pipekit.ledger.report.templates import template
from pipekit.reading import read_text

_ROOT = Path(__file__).parents[3]
FOLDER = "source"
"""Beside the report."""


def name(path: Path) -> str:
    """Return what a file of the package is called, say ``pipekit/oracle/train.py``."""
    return path.relative_to(_ROOT).as_posix()


def href(path: Path, line: int) -> str:
    """Return the link from the report to a line, from 1, of a file of the package."""
    return f"{PurePosixPath(FOLDER, name(path))}.html#line-{line}"


def write(path: Path, folder: Path) -> None:
    """Write the page of a file of the package, below a report's folder."""
    page = folder / FOLDER / f"{name(path)}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = read_text(path).splitlines()
    text = template("source.html.j2").render(name=name(path), lines=lines)
    page.write_text(text, encoding="utf-8")
