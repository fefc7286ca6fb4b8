"""Schedules as the papers draw them: a row a worker, a column a time slot.

    time     | 1  2  3  4  5  6  7  8  9  10 11
    worker 0 | F0 F1 .  .  B0 -  .  B1 -^
    worker 1 | .  F0 B0 -  F1 B1 -^

``F1`` and ``B1`` are the passes of microbatch 1, and ``I1`` and ``W1`` the parts of a backward for
the input and for the weights; ``-`` continues a pass, ``.`` idles, ``^`` ends a cell with an update
that takes no time (``^5``: one that sums up to microbatch 5 rather than to the highest whose
gradient has been added here).  A pass reads the newest version at that point, and a backward that
of its forward, unless it says ``F4:1`` for version 1.  ``F3@2`` is a pass of stage 2 on a worker
whose row begins with another stage.
``F5&`` runs together with the next pass of its row; they are drawn one after the other.
"""

import re
from collections.abc import Iterable, Mapping

from pipekit.schedules.clock import PAPER_SLOTS, slots
from pipekit.schedules.ops import OPS, PASSES, Op
from pipekit.schedules.table import Table
from pipekit.schedules.task import ScheduleError, Task

_ROW = re.compile(r"worker (\d{1,9})(?: stage (\d{1,9}))?$")
_PASS = "".join(op.value for op in PASSES)
_CELL = re.compile(rf"([{_PASS}])(\d{{1,9}})(?:@(\d{{1,9}}))?(?::(\d{{1,9}}))?(&?)$")
_UPDATE = re.compile(r"(.*)\^(\d{0,9})(?:@(\d{1,9}))?$")
_NO_STASHING = "; backward may read another version than forward"
_BATCHES = re.compile(r"; batches of ([1-9]\d{0,8})$")

_MOST_CELLS = 10**7
"""Of a picture."""


class _Reader:
    """The versions that a picture leaves out: what a worker has updated and read so far."""

    def __init__(self, stage: int, stashing: bool) -> None:
        self.stage, self.stashing = stage, stashing
        self.newest: dict[int, int] = {}
        self.forward: dict[tuple[int, int], int] = {}
        self.last_added: dict[int, int] = {}
        self.overlaps: list[tuple[Task, Task]] = []
        self.waiting: Task | None = None  # runs together with the next

    def version(self, op: Op, stage: int, microbatch: int) -> int:
        """Return the version that a pass without a note reads."""
        newest = self.newest.get(stage, 0)
        if OPS[op].own and self.stashing:
            return self.forward.get((stage, microbatch), newest)
        return newest

    def ran(self, task: Task, overlaps: bool = False) -> Task:
        """Note a task, and whether it runs together with the next."""
        op, stage, microbatch, version = task
        rule = OPS[op]
        if not rule.is_pass:
            self.newest[stage] = version
        elif not rule.own:
            self.forward[stage, microbatch] = version
        if rule.adds_gradient:
            self.last_added[stage] = max(microbatch, self.last_added.get(stage, -1))
        if self.waiting:
            self.overlaps.append((self.waiting, task))
        self.waiting = task if overlaps else None
        return task


def draw(
    schedule: Table,
    durations: Mapping[Op, int] = PAPER_SLOTS,  # type: ignore[assignment]
    batches: int | None = None,
) -> str:
    """Return the picture of a schedule as text; :func:`pipekit.schedules.parse` reads it back.

    Args:
        schedule: an executable schedule.
        durations: whole time slots of each kind of pass, at least 1 each.
        batches: how many; None: as many as fill the pipeline (:meth:`Schedule.excerpt`).

    Raises:
        ScheduleError: the workers would wait for one another for ever.
    """
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
        reader = _Reader(stage, schedule.stashing)
        cells: list[str] = []
        for task, (start, end) in zip(tasks, times.astype(int).tolist(), strict=True):
            if not OPS[task.op].is_pass:
                cells = cells or ["."]  # a worker may begin with an update, of others' gradients
                cells[-1] += _update_label(task, reader)
            else:
                cells += ["."] * (start - len(cells))
                together = "&" if task in firsts else ""
                cells += [_label(task, reader) + together] + ["-"] * (end - start - 1)
            reader.ran(task)
        name = f"worker {worker}" + (f" stage {stage}" if stage != worker else "")
        rows.append([name, *cells])
    columns = max(map(len, rows), default=1)
    rows = [["time", *map(str, range(1, columns))], *rows]
    width = max((len(cell) for row in rows for cell in row[1:]), default=0)
    margin = max(len(row[0]) for row in rows)
    title = f"# {schedule.title}" + ("" if schedule.stashing else _NO_STASHING)
    title += f"; batches of {schedule.batch_size}" if schedule.batch_size else ""
    lines = (
        f"{name:<{margin}} | " + " ".join(f"{cell:<{width}}" for cell in cells)
        for name, *cells in rows
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])


def read(text: str) -> Table:
    """Read a picture; see :func:`pipekit.schedules.parse`."""
    name, stashing, batch_size = "schedule", True, None
    workers: dict[int, tuple[Task, ...]] = {}
    overlaps: list[tuple[Task, Task]] = []
    for number, written in enumerate(text.splitlines(), start=1):
        line = written.strip()
        if line.startswith("#"):
            name = line.removeprefix("#").strip()
            if found := _BATCHES.search(name):
                name, batch_size = name[: found.start()], int(found[1])
            stashing = not name.endswith(_NO_STASHING)
            name = name.removesuffix(_NO_STASHING)
        elif line and not line.startswith("time"):
            label, bar, cells = line.partition("|")
            row = _ROW.match(label.strip())
            if not bar or not row:
                raise ScheduleError(
                    f"line {number}: expected 'worker N | F0 B0 ...', got {line!r}", line=number
                )
            worker, stage = int(row[1]), int(row[2] or row[1])
            if worker in workers:
                raise ScheduleError(
                    f"line {number}: worker {worker} has a row already", line=number
                )
            reader = _Reader(stage, stashing)
            skipped = len(written) - len(written.lstrip()) + len(label) + len(bar)
            placed = [(skipped + cell.start() + 1, cell[0]) for cell in re.finditer(r"\S+", cells)]
            workers[worker] = tuple(_read(placed, reader, number))
            if reader.waiting:
                raise ScheduleError(
                    f"line {number}: nothing follows {reader.waiting.label}& to run together with",
                    line=number,
                )
            overlaps += reader.overlaps
    if sorted(workers) != list(range(len(workers))):
        raise ScheduleError(f"workers must be numbered 0, 1, 2, ..., not {sorted(workers)}")
    rows = tuple(workers[w] for w in sorted(workers))
    return Table(rows, name, stashing, batch_size, frozenset(overlaps))


def _label(task: Task, reader: _Reader) -> str:
    op, stage, microbatch, version = task
    at = f"@{stage}" if stage != reader.stage else ""
    note = f":{version}" if version != reader.version(op, stage, microbatch) else ""
    return f"{op.value}{microbatch}{at}{note}"


def _update_label(task: Task, reader: _Reader) -> str:
    last = task.microbatch if task.microbatch != reader.last_added.get(task.stage) else ""
    return f"^{last}" + (f"@{task.stage}" if task.stage != reader.stage else "")


def _read(cells: Iterable[tuple[int, str]], reader: _Reader, line: int) -> Iterable[Task]:
    """Yield the tasks of a row's cells, each of which comes with its column."""
    for column, cell in cells:
        updates = []
        body = cell
        while found := _UPDATE.match(body):
            body, last, at = found.groups()
            updates.append((last, int(at or reader.stage)))
        if body not in (".", "-", ""):
            found = _CELL.match(body)
            if not found:
                raise ScheduleError(
                    f"line {line}: cannot read {cell!r}; a cell is '.', '-', or a pass like 'F3', "
                    f"'B3', 'I3', 'W3', 'F3:1' (version 1) or 'F3@2' (stage 2), with '^' after it "
                    f"for an update, or '&' if it runs together with the next",
                    line=line,
                    column=column,
                )
            op, microbatch, stage = Op(found[1]), int(found[2]), int(found[3] or reader.stage)
            version = int(found[4]) if found[4] else reader.version(op, stage, microbatch)
            yield reader.ran(Task(op, stage, microbatch, version), bool(found[5]))
        for last, stage in reversed(updates):
            if not last and stage not in reader.last_added:
                raise ScheduleError(
                    f"line {line}: {cell!r} updates before any backward", line=line, column=column
                )
            summed = int(last) if last else reader.last_added[stage]
            yield reader.ran(Task(Op.UPDATE, stage, summed, reader.newest.get(stage, 0) + 1))
