"""Where in a drawn schedule the tasks stand that an error names."""

import re
from collections.abc import Iterator
from html import escape

_TASK = re.compile(r"\b([FBU])(\d+) of stage (\d+)")
_LINE = re.compile(r"line (\d+): (?:.*?'([^']*)')?")
_ROW = re.compile(r"\s*worker (\d+)(?: stage (\d+))?\s*\|")
_PASS = re.compile(r"([FB])(\d+)(?:@(\d+))?(?::\d+)?")
_UPDATE = re.compile(r"\^\d*(?:@(\d+))?")


def faults(picture: str, message: str) -> list[tuple[int, int]]:
    """Return the characters (from, to) of a picture's cells that an error is about.

    Args:
        picture: as :func:`pipekit.schedules.parse` reads it.
        message: of the error that it, or :func:`pipekit.schedules.check`, has raised.
    """
    if found := _LINE.match(message):
        return [*_in_line(picture, int(found[1]), found[2])]
    named = {found.groups() for found in _TASK.finditer(message)}
    places = sorted(place for task, place in _cells(picture) if task in named)
    return places or _rows(picture, {stage for _, _, stage in named})  # what is missing has no cell


def marked(picture: str, message: str) -> str:
    """Return the picture as HTML, with the cells marked that an error is about."""
    html, end = "", 0
    for start, stop in faults(picture, message):
        html += f"{escape(picture[end:start])}<mark>{escape(picture[start:stop])}</mark>"
        end = stop
    return html + escape(picture[end:])


def _rows(picture: str, stages: set[str]) -> list[tuple[int, int]]:
    """Return where the names of the rows stand that have these stages."""
    rows = ((start, _ROW.match(line)) for start, line in _lines(picture))
    return [
        (start + row.start(1) - len("worker "), start + row.end(1))
        for start, row in rows
        if row and (row[2] or row[1]) in stages
    ]


def _in_line(picture: str, number: int, cell: str | None) -> Iterator[tuple[int, int]]:
    start, line = _lines(picture)[number - 1]
    at = line.find(cell) if cell else -1
    yield (start, start + len(line)) if at < 0 else (start + at, start + at + len(cell or ""))


def _lines(picture: str) -> list[tuple[int, str]]:
    """Return each line with where it starts."""
    lines, start = [], 0
    for line in picture.splitlines(keepends=True):
        lines.append((start, line.rstrip("\n")))
        start += len(line)
    return lines


def _cells(picture: str) -> Iterator[tuple[tuple[str, ...], tuple[int, int]]]:
    """Yield (op, number, stage) of each pass and update, and where it stands."""
    for start, line in _lines(picture):
        row = _ROW.match(line)
        if not row:
            continue
        own = row[2] or row[1]
        updates: dict[str, int] = {}
        for cell in re.finditer(r"\S+", line[row.end() :]):
            at = start + row.end() + cell.start()
            if found := _PASS.match(cell[0]):
                yield (found[1], found[2], found[3] or own), (at, at + found.end())
            for update in _UPDATE.finditer(cell[0]):
                stage = update[1] or own
                updates[stage] = updates.get(stage, 0) + 1
                place = (at + update.start(), at + update.end())
                yield ("U", str(updates[stage]), stage), place
