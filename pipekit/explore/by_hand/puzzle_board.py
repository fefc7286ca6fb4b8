"""The game: a puzzle's tasks as buttons, the board as picture and as text, and training with it."""

from functools import partial
from typing import Any

import ipywidgets as widgets

from pipekit.explore.by_hand.own_schedule import OwnSchedule, text_area
from pipekit.explore.by_hand.puzzles import PUZZLES, Puzzle
from pipekit.explore.page.controls import choice
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.plots import style
from pipekit.schedules import OPS, ScheduleError, Task
from pipekit.traces import Trace

FIRST = next(iter(PUZZLES))


def see(puzzle: str = FIRST, picture: str = PUZZLES[FIRST].empty) -> View:
    """Return a board, drawn in time slots, and how far it is; ``picture`` has the tasks placed."""
    chosen = PUZZLES[puzzle]
    board = chosen.board(picture)
    drawn = Trace.from_schedule(board)
    timelines = [Timeline(drawn, title=f"{chosen.name}: yours")] if drawn.makespan_s else []
    return View(chosen.verdict(board), timelines)


def solved(puzzle: str = FIRST, picture: str | None = None) -> View:
    """Return :func:`see` of the best board known, for pages without a kernel."""
    return see(puzzle, str(PUZZLES[puzzle].best) if picture is None else picture)


class PuzzleBoard(OwnSchedule):
    """A menu of puzzles, a row of buttons a worker, and what :class:`OwnSchedule` has.

    A button places a task at the end of its worker's row, or says why it cannot be there.  The text
    can be edited, too.  What is complete can be trained with.
    """

    def controls_box(self) -> widgets.Widget:
        """Return the menu, the task, the buttons and the text."""
        menu = self._controls["puzzle"]
        menu.observe(self._restart, names="value")
        self._task, self._tasks = widgets.HTML(), widgets.VBox()
        actions = [
            _button("Undo", self._undo),
            _button("Clear", self._restart),
            _button("Show the best known", self._solve),
        ]
        self._history: list[str] = []
        text = super().controls_box()
        return widgets.VBox([menu, self._task, self._tasks, _row(actions), text])

    @property
    def puzzle(self) -> Puzzle:
        """The one chosen."""
        return PUZZLES[self.values()["puzzle"]]

    def show(self, view: View) -> None:
        """Replace all that is shown, the buttons too."""
        super().show(view)
        board = self.puzzle.board(self.values()["picture"])
        self._task.value = f"<p>{self.puzzle.task}</p>"
        self._tasks.children = [
            _row([widgets.Label(f"worker {worker}"), *(self._placing(worker, t) for t in left)])
            for worker, left in enumerate(self.puzzle.left(board))
        ]
        self._button.disabled = not self.puzzle.is_complete(board)

    def _placing(self, worker: int, task: Task) -> widgets.Button:
        own = self.puzzle.best.workers[worker][0].stage
        label = task.label if OPS[task.op].is_pass else "^"
        label += f"@{task.stage}" if task.stage != own else ""
        button = _button(label, partial(self._place, worker, task), width="64px")
        button.style = {"button_color": style.OPS[task.op.name].color, "text_color": "black"}
        return button

    def _place(self, worker: int, task: Task, _button: object) -> None:
        picture = self.values()["picture"]
        try:
            placed = self.puzzle.place(picture, worker, task)
        except ScheduleError as error:
            self.complain(error)
        else:
            self._history.append(picture)
            self._controls["picture"].value = placed

    def _undo(self, _button: object) -> None:
        if self._history:
            self._controls["picture"].value = self._history.pop()

    def _restart(self, _change: object) -> None:
        self._history.clear()
        self._controls["picture"].value = self.puzzle.empty

    def _solve(self, _button: object) -> None:
        self._history.append(self.values()["picture"])
        self._controls["picture"].value = str(self.puzzle.best)


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    return {"puzzle": choice("Puzzle", PUZZLES), "picture": text_area(6)}


puzzles = partial(
    explore, see, controls, explorer=PuzzleBoard, still=solved, waits_for="loading torch"
)
"""Display the game; see :func:`pipekit.explore.page.explorer.explore`."""


def _row(members: list[widgets.Widget]) -> widgets.HBox:
    """Return widgets side by side, on several lines where a page is narrow."""
    return widgets.HBox(members, layout={"flex_flow": "row wrap"})


def _button(text: str, pressed: Any, width: str = "auto") -> widgets.Button:
    button = widgets.Button(description=text, layout={"width": width})
    button.on_click(pressed)
    return button
