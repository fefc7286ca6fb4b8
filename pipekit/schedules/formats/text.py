"""Schedules as the papers draw them: a row a worker, a column a time slot.

    time     | 1  2  3  4  5  6  7  8  9  10 11
    worker 0 | F0 F1 .  .  B0 -  .  B1 -^
    worker 1 | .  F0 B0 -  F1 B1 -^

``F1``, ``B1``, ``I1`` and ``W1`` are passes of microbatch 1; ``-`` continues one, ``.`` idles,
``^`` ends a cell with an update that takes no time (``^5``: one that sums up to microbatch 5 rather
than to the highest whose gradient has been added here).  A pass reads the newest version at that
point, and a backward that of its forward, unless it says ``F4:1`` for version 1.  ``F3@2`` is a
pass of stage 2 on a worker whose row begins with another stage.  ``F5&`` runs together with the
next pass of its row.  ``F0.1`` is chunk 1 of microbatch 0.  ``F4/O3`` begins another stream's task
when F4 ends: it runs beside what follows (``O3>2``: to or from worker 2).
"""

import re
from collections.abc import Iterator, Mapping

from pipekit.schedules.clock import PAPER_SLOTS
from pipekit.schedules.ops import OPS, Op
from pipekit.schedules.replay import slots
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task

_ROW = re.compile(r"worker (\d{1,9})(?: stage (\d{1,9}))?$")
_CELL = re.compile(
    r"(?P<letter>[A-Z])(?P<microbatch>\d{1,9})(?:\.(?P<chunk>\d{1,9}))?(?:>(?P<peer>\d{1,9}))?"
    r"(?:@(?P<stage>\d{1,9}))?(?::(?P<version>\d{1,9}))?(?P<together>&?)$"
)
_UPDATE = re.compile(r"\^(\d{0,9})(?:@(\d{1,9}))?$")
_NO_STASHING = "; backward may read another version than forward"
_TITLE = re.compile(
    rf"#\s*(?P<name>.*?)(?P<no_stashing>{_NO_STASHING})?"
    r"(?:; (?P<chunks>[1-9]\d{0,8}) chunks a microbatch)?(?:; batches of (?P<batch>[1-9]\d{0,8}))?$"
)

_MOST_CELLS = 10**7
"""Of a picture."""


class _Reader:
    """The versions that a picture leaves out: what a worker has updated and read so far."""

    def __init__(self, stage: int, stashing: bool, chunks: int) -> None:
        self.stage, self.stashing, self.chunks = stage, stashing, chunks
        self.newest: dict[int, int] = {}
        self.forward: dict[tuple[int, int], int] = {}
        self.last_added: dict[int, int] = {}
        self.overlaps: list[tuple[Task, Task]] = []
        self.waiting: Task | None = None  # runs together with the next

    def version(self, op: Op, stage: int, microbatch: int) -> int:
        """Return the version that a pass without a note reads."""
        newest = self.newest.get(stage, 0)
        if op is not Op.FORWARD and self.stashing:
            return self.forward.get((stage, microbatch), newest)
        return newest

    def ran(self, task: Task, overlaps: bool = False) -> Task:
        """Note a task, and whether it runs together with the next."""
        op, stage, microbatch, version = task
        if not op.is_pass:
            self.newest[stage] = version
        elif op is Op.FORWARD:
            self.forward[stage, microbatch] = version
        if op.adds_gradient:
            self.last_added[stage] = max(microbatch, self.last_added.get(stage, -1))
        if self.waiting:
            self.overlaps.append((self.waiting, task))
        self.waiting = task if overlaps else None
        return task


def draw(
    schedule: Table,
    durations: Mapping[Op, int] = PAPER_SLOTS,  # type: ignore[assignment]
    batches: int | None = None,
    width: int | None = None,
) -> str:
    """Return the picture of a schedule as text; :func:`pipekit.schedules.parse` reads it back.

    Args:
        schedule: an executable schedule.
        durations: whole time slots of each kind of pass, at least 1 each.
        batches: how many; None: as many as fill the pipeline (:meth:`Schedule.excerpt`).
        width: of the text, at most: what does not fit stands below, and is not read back.

    Raises:
        ScheduleError: the workers would wait for one another for ever, or nobody could read it.
        ValueError: a duration is not whole, or below 1.
    """
    for op, slots_of in durations.items():
        if op.slots and slots_of not in range(1, _MOST_CELLS):
            raise ValueError(f"durations[{op.name}] must be a whole number from 1, not {slots_of}")
    schedule, rows = schedule.excerpt(batches), []
    firsts = {one for one, _ in schedule.overlaps}
    placed = slots(schedule, {**durations, Op.UPDATE: 0})
    length = int(max((times.max(initial=0) for times in placed), default=0))
    if length * len(placed) > _MOST_CELLS:
        raise ScheduleError(
            f"a picture of {len(placed):,} workers and {length:,} slots is too large to be read: "
            f"draw fewer batches, or write the table with to_csv"
        )
    for worker, (tasks, times) in enumerate(zip(schedule.workers, placed, strict=True)):
        stage = tasks[0].stage if tasks else worker
        reader = _Reader(stage, schedule.stashing, schedule.chunks)
        cells: list[str] = []
        for task, (start, end) in zip(tasks, times.astype(int).tolist(), strict=True):
            if not task.op.is_pass:
                cells = cells or ["."]  # a worker may begin with an update, of others' gradients
                last = task.microbatch
                cells[-1] += f"^{last if last != reader.last_added.get(task.stage) else ''}"
                cells[-1] += f"@{task.stage}" if task.stage != stage else ""
            elif task.op.stream or start == end:
                cells = cells or ["."]
                cells[-1] += "/" + _label(task, reader)
            else:
                cells += ["."] * (start - len(cells))
                together = "&" if task in firsts else ""
                cells += [_label(task, reader) + together] + ["-"] * (end - start - 1)
            reader.ran(task)
        name = f"worker {worker}" + (f" stage {stage}" if stage != worker else "")
        rows.append([name, *cells])
    columns = max(map(len, rows), default=1)
    rows = [["time", *map(str, range(1, columns))], *rows]
    each = max((len(cell) for row in rows for cell in row[1:]), default=0)
    margin = max(len(row[0]) for row in rows)
    title = f"# {schedule.title}"
    if any(_titled(title).groups()[1:]):
        title = title.replace(";", ",")  # else it would be read back as more than a name
    title += "" if schedule.stashing else _NO_STASHING
    title += f"; {schedule.chunks} chunks a microbatch" if schedule.chunks > 1 else ""
    title += f"; batches of {schedule.batch_size}" if schedule.batch_size else ""
    fit = max(1, (width - margin - 2) // (each + 1)) if width else columns
    lines = (
        f"{name:<{margin}} | " + " ".join(f"{cell:<{each}}" for cell in cells[begin : begin + fit])
        for begin in range(0, max(1, columns - 1), fit)
        for name, *cells in rows
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])


def read(text: str) -> Table:
    """Read a picture; see :func:`pipekit.schedules.parse`."""
    name, stashing, chunks = "schedule", True, 1
    batch_size: int | None = None
    workers: dict[int, tuple[Task, ...]] = {}
    overlaps: list[tuple[Task, Task]] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if line.startswith("#"):
            title = _titled(line)
            name, stashing = title["name"], not title["no_stashing"]
            chunks = int(title["chunks"] or 1)
            batch_size = int(title["batch"]) if title["batch"] else None
        elif line and not line.startswith("time"):
            label, bar, cells = line.partition("|")
            row = _ROW.match(label.strip())
            if not bar or not row:
                raise ScheduleError(f"line {number}: expected 'worker N | F0 B0 ...', got {line!r}")
            worker, stage = int(row[1]), int(row[2] or row[1])
            if worker in workers:
                raise ScheduleError(f"line {number}: worker {worker} has a row already")
            reader, tasks = _Reader(stage, stashing, chunks), list[Task]()
            for cell in cells.split():
                try:
                    tasks += _tasks(cell, reader)
                except ScheduleError as error:
                    raise ScheduleError(f"line {number}: {error}") from None
            workers[worker] = tuple(tasks)
            if reader.waiting:
                raise ScheduleError(
                    f"line {number}: nothing follows {reader.waiting.label}& to run together with"
                )
            overlaps += reader.overlaps
    if sorted(workers) != list(range(len(workers))):
        raise ScheduleError(f"workers must be numbered 0, 1, 2, ..., not {sorted(workers)}")
    rows = tuple(workers[w] for w in sorted(workers))
    return Table(rows, name, stashing, batch_size, frozenset(overlaps), chunks=chunks)


def _label(task: Task, reader: _Reader) -> str:
    op, stage, microbatch, version = task
    at = f"@{stage}" if stage != reader.stage else ""
    note = f":{version}" if version != reader.version(op, stage, microbatch) else ""
    return f"{op.letter}{task.numbered(reader.chunks)}{op.at_peer}{at}{note}"


def _tasks(cell: str, reader: _Reader) -> Iterator[Task]:
    body, *behind = re.split(r"(?=[/^])", cell)
    if body not in (".", "-", ""):
        yield _task(body, cell, reader)
    for part in behind:
        if part.startswith("/"):
            yield _task(part[1:], cell, reader)
            continue
        update = _UPDATE.match(part)
        if not update:
            raise _unreadable(cell)
        stage = int(update[2] or reader.stage)
        if not update[1] and stage not in reader.last_added:
            raise ScheduleError(f"{cell!r} updates before any backward")
        summed = int(update[1]) if update[1] else reader.last_added[stage]
        yield reader.ran(Task(Op.UPDATE, stage, summed, reader.newest.get(stage, 0) + 1))


def _task(written: str, cell: str, reader: _Reader) -> Task:
    found = _CELL.match(written)
    if not found or (found["chunk"] is None) != (reader.chunks == 1):
        raise _unreadable(cell)
    try:
        op = Op.lettered(found["letter"], int(found["peer"]) if found["peer"] else None)
    except KeyError:
        raise _unreadable(cell) from None
    except ValueError as error:  # a peer of what has none
        raise ScheduleError(f"cannot read {cell!r}: {error}") from None
    microbatch = int(found["microbatch"]) * reader.chunks + int(found["chunk"] or 0)
    stage = int(found["stage"] or reader.stage)
    known = found["version"]
    version = int(known) if known else reader.version(op, stage, microbatch)
    return reader.ran(Task(op, stage, microbatch, version), bool(found["together"]))


def _unreadable(cell: str) -> ScheduleError:
    letters = ", ".join(sorted({op.letter for op in OPS if op.is_pass}))
    return ScheduleError(
        f"cannot read {cell!r}; a cell is '.', '-', or a task like 'F3', 'F3:1' (version 1), "
        f"'F3@2' (stage 2) or 'F3.1' (chunk 1), its letter one of {letters}, with '^' after it for "
        f"an update, '/O3' for a task beside it, or '&' if it runs together with the next"
    )


def _titled(line: str) -> re.Match[str]:
    found = _TITLE.match(line)
    assert found  # a name may be anything on one line
    return found
