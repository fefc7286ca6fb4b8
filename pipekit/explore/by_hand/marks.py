"""The places in a drawn schedule of the tasks that an error names."""

import re
from collections.abc import Iterator
from html import escape

from pipekit.schedules import ScheduleError, parse

_ROW = re.compile(r"\s*worker (\d+)(?: stage (\d+))?\s*\|")
_WRITTEN = re.compile(r"[A-Z^][^\s/^&]*")
Place = tuple[int, int]
"""The characters from the first to the one before the second."""


def faults(picture: str, error: ValueError) -> list[Place]:
    """Return the characters of a picture's cells at fault; only a ScheduleError says where.

    A missing task has no cell: then the names of the rows that have its stage are at fault.
    """
    if not isinstance(error, ScheduleError):
        return []
    if error.line is not None:
        return [_in_line(picture, error.line, error.column)]
    named = {
        (task.label, task.stage, worker)
        for task, worker in zip(error.tasks, error.workers, strict=True)
    }
    places = [
        place
        for (label, stage, worker), place in _cells(picture)
        if {(label, stage, worker), (label, stage, None)} & named
    ]
    return sorted(places) or _rows(picture, {task.stage for task in error.tasks})


def marked(picture: str, error: ValueError) -> str:
    """Return the picture as HTML, with the cells marked that an error is about."""
    html, end = "", 0
    for start, stop in faults(picture, error):
        html += f"{escape(picture[end:start])}<mark>{escape(picture[start:stop])}</mark>"
        end = stop
    return html + escape(picture[end:])


def _rows(picture: str, stages: set[int]) -> list[Place]:
    """Return where the names of the rows stand that have these stages."""
    rows = ((start, _ROW.match(line)) for start, line in _lines(picture))
    return [
        (start + row.start(1) - len("worker "), start + row.end(1))
        for start, row in rows
        if row and int(row[2] or row[1]) in stages
    ]


def _in_line(picture: str, number: int, column: int | None) -> Place:
    start, line = _lines(picture)[number - 1]
    if column is None:
        return start, start + len(line)
    cell = re.compile(r"\S+").match(line, column - 1)
    return start + column - 1, start + (cell.end() if cell else len(line))


def _lines(picture: str) -> list[tuple[int, str]]:
    """Return each line with where it starts."""
    lines, start = [], 0
    for line in picture.splitlines(keepends=True):
        lines.append((start, line.rstrip("\n")))
        start += len(line)
    return lines


def _cells(picture: str) -> Iterator[tuple[tuple[str, int, int], Place]]:
    """Yield the label, stage and worker of each task of a picture that can be read, and its place.

    A row has its tasks in the order of their letters, and of updates' carets.
    """
    workers = parse(picture).workers
    for start, line in _lines(picture):
        if row := _ROW.match(line):
            worker = int(row[1])
            written = _WRITTEN.finditer(line, row.end())
            for task, cell in zip(workers[worker], written, strict=True):
                yield (task.label, task.stage, worker), (start + cell.start(), start + cell.end())
