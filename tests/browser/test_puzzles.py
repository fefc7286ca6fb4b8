"""The game in a real browser: puzzles are played to their end, and trained with."""

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")

from playwright.sync_api import Locator, expect

from pipekit.explore.by_hand.puzzles import PUZZLES, Puzzle
from pipekit.schedules import OPS, Task
from tests.browser.jupyterlab import CELLS_S, WIDTHS, Lab
from tests.schedules.examples import replay

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def game(lab: Lab) -> Locator:
    lab.run("puzzles.ipynb")
    notebook = lab.show("puzzles.ipynb")
    notebook.get_by_text("tasks placed").wait_for(timeout=1000 * CELLS_S)
    return notebook


@pytest.mark.parametrize("name", ["1. Naive", "4. Interleaved 1F1B", "8. Under a memory cap"])
def test_a_puzzle_is_played_to_its_end_and_trained_with(
    name: str, lab: Lab, game: Locator, screenshots: Path
) -> None:
    puzzle = PUZZLES[name]
    lab.show("puzzles.ipynb")
    game.locator("select", has_text="1. Naive").select_option(puzzle.name)
    tasks = [(worker, task) for worker, _, task in replay(puzzle.best)]
    expect(game.get_by_text(f"0 of {len(tasks)} tasks placed")).to_be_visible()
    train = game.get_by_text("Train with it", exact=True)
    for number, (worker, task) in enumerate(tasks, start=1):
        expect(train).to_be_disabled()
        row = game.locator(".widget-hbox", has=lab.page.get_by_text(f"worker {worker}", exact=True))
        row.last.get_by_text(label(puzzle, worker, task), exact=True).click()
        if number < len(tasks):
            game.get_by_text(f"{number} of {len(tasks)} tasks placed").wait_for()
    game.get_by_text("Solved").wait_for()
    train.click()
    game.get_by_text(f"{puzzle.name}, as executed").wait_for(timeout=1000 * CELLS_S)
    game.locator(".pipekit-chart .g-gtitle", has_text="Trained: loss").wait_for()
    expect(game.get_by_text("Solved")).to_be_visible()
    lab.photographed(f"puzzle_{puzzle.name[0]}", screenshots)


def test_on_a_phone_every_button_says_all_of_its_text(lab: Lab, game: Locator) -> None:
    size = lab.page.viewport_size
    assert size is not None
    lab.page.set_viewport_size({**size, "width": WIDTHS["phone"]})
    try:
        lab.show("puzzles.ipynb")
        expect(game.get_by_text("Show the best known", exact=True)).to_be_visible()
        buttons = game.locator(".widget-button").filter(visible=True)
        cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        assert buttons.evaluate_all(cut) == []
    finally:
        lab.page.set_viewport_size(size)


def label(puzzle: Puzzle, worker: int, task: Task) -> str:
    """Return what the button of a task says."""
    own = puzzle.best.workers[worker][0].stage
    text = task.label if OPS[task.op].is_pass else "^"
    return text if task.stage == own else f"{text}@{task.stage}"
