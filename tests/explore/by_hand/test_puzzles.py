"""The game: every puzzle can be solved, and what cannot be placed says why."""

from typing import Any

import ipywidgets as widgets
import pytest

from pipekit.explore.by_hand.puzzle_board import PuzzleBoard, controls, see, solved
from pipekit.explore.by_hand.puzzles import PUZZLES, Puzzle
from pipekit.schedules import ScheduleError, check
from tests.explore.inside import inside
from tests.schedules.examples import replay

GPIPE, ONE_F_ONE_B, PIPEDREAM = (PUZZLES[name] for name in ("2. GPipe", "3. 1F1B", "5. PipeDream"))


@pytest.mark.parametrize("puzzle", PUZZLES.values(), ids=lambda puzzle: puzzle.name)
def test_every_puzzle_is_solved_task_by_task(puzzle: Puzzle) -> None:
    picture = puzzle.empty
    for worker, _, task in replay(puzzle.best):
        assert not puzzle.is_complete(puzzle.board(picture))
        picture = puzzle.place(picture, worker, task)
    board = puzzle.board(picture)
    assert [*map(tuple, board.workers)] == [*map(tuple, puzzle.best.workers)]
    assert puzzle.verdict(board).startswith("Solved")
    assert not any(puzzle.left(board))
    check(board)


@pytest.mark.parametrize(
    ("puzzle", "rows", "says"),
    [
        (GPIPE, "F0 B0 -", "B0 of stage 0 needs B0 of stage 1, which is not placed yet"),
        (GPIPE, "F0 F0", "F0 of stage 0 is placed twice"),
        (GPIPE, "F9", "worker 0 has no F9 of stage 0 in this puzzle"),
        (GPIPE, "B0@1", "worker 0 has no B0 of stage 1 in this puzzle"),
        (ONE_F_ONE_B, "F0 F1 F2 F3", "worker 0 may have 3 microbatches in flight: F3"),
        (PIPEDREAM, "F0 F1 F2 F3", "F3 of stage 0 reads weight version 1 in this puzzle"),
    ],
)
def test_what_cannot_be_placed_says_why(puzzle: Puzzle, rows: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says) as caught:
        puzzle.board(f"worker 0 | {rows}\nworker 1 |\nworker 2 |")
    assert caught.value.tasks


def test_a_slower_order_is_executable_but_not_solved() -> None:
    slow = "\n".join(f"worker {w} | F0 B0 - F1 B1 - F2 B2 - F3 B3 -^" for w in range(3))
    verdict = GPIPE.verdict(GPIPE.board(slow))
    assert verdict.startswith("Executable, but the best known is faster. 36 slots (best known 18)")


class TestBoard:
    @pytest.fixture
    def board(self) -> PuzzleBoard:
        board = PuzzleBoard(see, controls(), {})
        board.begin()
        return board

    def buttons(self, board: PuzzleBoard) -> dict[str, Any]:
        """Return the first button of each name."""
        return {each.description: each for each in inside(board, widgets.Button)[::-1]}

    def test_a_button_places_a_task_and_undo_takes_it_back(self, board: PuzzleBoard) -> None:
        self.buttons(board)["F0"].click()
        assert "1 of 18 tasks placed" in board._text.value
        assert "F0" in board.values()["picture"]
        self.buttons(board)["Undo"].click()
        assert "0 of 18 tasks placed" in board._text.value

    def test_a_refused_task_is_explained_and_the_board_stays(self, board: PuzzleBoard) -> None:
        before = board.values()["picture"]
        self.buttons(board)["B0"].click()
        assert "needs" in board._message.value
        assert board.values()["picture"] == before

    def test_another_puzzle_begins_with_an_empty_board(self, board: PuzzleBoard) -> None:
        board._controls["puzzle"].value = "7. Zero bubble"
        assert board._message.value == ""
        assert "0 of 39 tasks placed" in board._text.value
        assert {"F0", "I0", "W0", "^"} <= self.buttons(board).keys()

    def test_only_a_complete_board_can_be_trained_with(self, board: PuzzleBoard) -> None:
        assert self.buttons(board)["Train with it"].disabled
        self.buttons(board)["Show the best known"].click()
        assert not self.buttons(board)["Train with it"].disabled
        assert "Solved" in board._text.value

    @pytest.mark.long
    def test_it_trains(self, board: PuzzleBoard) -> None:
        self.buttons(board)["Show the best known"].click()
        self.buttons(board)["Train with it"].click()
        assert len(board._charts) == 1
        best = PUZZLES["1. Naive"].best.title
        assert board._canvases[-1].picture["title"].startswith(f"{best}, as executed")
        assert "Solved" in board._text.value, "the verdict stays"


def test_without_a_kernel_the_best_board_is_shown() -> None:
    assert "Solved" in solved().text
