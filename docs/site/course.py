"""The course: the eight puzzles as lessons, each with its task and the best answer known."""

import json
from collections.abc import Sequence
from pathlib import Path

from pipekit import plots
from pipekit.explore.by_hand.puzzles import PUZZLES, Puzzle
from pipekit.schedules import OPS, Task
from pipekit.schedules.methods.by_name import METHODS
from pipekit.traces import Trace, describe_bubbles
from pipekit.units import listed

GAME = "notebooks/explore/puzzles.ipynb"

INTRODUCTION = """# A course in eight puzzles

Find the methods yourself, from no pipeline at all to a zero bubble under a memory cap. Each lesson
gives the tasks of one method, a worker a row; you put them in an order. A forward takes a time slot
and a whole backward two. Play in JupyterLab, where a button places a task or says why it cannot be
there, and where you then **train with the order that you made**:

    jupyter lab notebooks/explore/puzzles.ipynb

Or solve it on paper: each lesson has the empty board, and its answer is folded away. Yours is as
good as the best known if it takes no more slots, and keeps no more microbatches in flight and no
more versions of the weights.

How to read a board: `F2` is the forward of microbatch 2, `B2` its backward (`-` its second slot),
`I2` and `W2` a backward's two halves, `^` an update, `.` a slot in which the worker waits; `F1@2`
is a forward of stage 2, on a worker that has several stages."""


def page(root: Path, folder: Path) -> str:
    """Return the course's page; its pictures are written into a folder."""
    sources = taught(root / GAME)
    lessons = [lesson(puzzle, *sources[puzzle.name], folder) for puzzle in PUZZLES.values()]
    end = (
        "## And then\n\n[A page a method](/methods/index.md) has the others, with what each costs. "
        "[Write one that nobody has](/methods.md), and `pk.search` looks for a better one for your "
        "stages, links and memory ([how](/cost.md))."
    )
    return "\n\n".join([INTRODUCTION, *lessons, end])


def lesson(puzzle: Puzzle, teaches: str, source: str, folder: Path) -> str:
    """Return a puzzle's section; the picture of its best answer is written into a folder."""
    drawn = Trace.from_schedule(puzzle.best)
    stem = puzzle.name.partition(".")[0]
    picture = plots.save(plots.timeline(drawn), folder / stem, drawn.frame)["svg"].name
    rows = [_all(tasks) for tasks in puzzle.best.workers]
    left = f"Each worker has {rows[0]}"
    if len(set(rows)) > 1:
        left = "; ".join(f"Worker {worker} has {row}" for worker, row in enumerate(rows))
    cap = f" In flight at most, a worker: {listed(puzzle.caps)}." if puzzle.capped else ""
    facts = (
        f"{puzzle.slots:g} slots, {describe_bubbles(drawn.bubbles())}; in flight, a worker: "
        f"{listed(puzzle.caps)}; weight slots: {listed(puzzle.versions)} (exact)."
    )
    named = [name for name in METHODS if METHODS[name](4, 8).name == puzzle.best.name]
    more = "".join(f" [More about it](/methods/{name}.md)." for name in named)
    return "\n\n".join(
        [
            f"## {puzzle.name}",
            f"{puzzle.task}{cap} Best known: {puzzle.slots:g} slots.",
            f"{left}.",
            f"```text\n{puzzle.empty}\n```",
            "<details><summary>The best known answer, and what it teaches</summary>",
            f"**{teaches[0].upper()}{teaches[1:]}** ({source}).{more}",
            f"![{puzzle.best.title}](/course/{picture})",
            facts,
            "</details>",
        ]
    )


def _all(tasks: Sequence[Task]) -> str:
    """Return a worker's tasks in no order that helps: by op, stage and microbatch."""
    in_turn = sorted(tasks, key=lambda task: (list(OPS).index(task.op), *task[1:]))
    return " ".join(_label(task, tasks[0].stage) for task in in_turn)


def _label(task: Task, own: int) -> str:
    label = task.label if OPS[task.op].is_pass else "^"
    return f"`{label}`" if task.stage == own else f"`{label}@{task.stage}`"


def taught(game: Path) -> dict[str, tuple[str, str]]:
    """Return what each puzzle teaches and where it is from, as the game's notebook says."""
    cells = json.loads(game.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: (teaches, source) for name, teaches, source in rows}
