"""The puzzles in Chromium: played by mouse, by keys and by touch, without a kernel."""

import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from pipekit.explore.puzzles.data import levels
from pipekit.explore.puzzles.page import html
from tests.browser.conftest import Open
from tests.browser.jupyterlab import SCREENS

LEVELS = levels()
SMALL = """() => [...document.querySelectorAll('.tray button, .actions button, .levels button')]
    .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 30)
    .map(e => e.outerHTML.slice(0, 120))"""
USUAL_MS = """() => {
    const took = performance.getEntriesByName('pipekit puzzle').map(e => e.duration);
    return took.sort((a, b) => a - b)[Math.floor(took.length / 2)];
}"""
"""From a key to the painted board, the median."""


def test_the_first_puzzle_can_be_played_within_three_seconds_from_a_megabyte(opened: Open) -> None:
    assert len(html().encode()) < 1e6
    took = []
    for _ in range(3):  # other work on the machine makes a try longer, never shorter
        began = time.monotonic()
        page = opened("puzzles.html")
        page.get_by_label("place F0 of stage 0").click()
        expect(page.get_by_text("1 of 18 tasks placed")).to_be_visible()
        took.append(time.monotonic() - began)
    assert min(took) < 3


@pytest.mark.parametrize("number", range(len(LEVELS)), ids=lambda n: LEVELS[n]["name"])
def test_hints_solve_every_level_and_its_solution_is_kept(number: int, opened: Open) -> None:
    page = opened(f"puzzles.html#level={number + 1}")
    for _ in range(3 * sum(len(row.split()) for row in LEVELS[number]["rows"])):
        if page.locator(".verdict.solved").count():
            break
        page.keyboard.press("h")
    expect(page.locator(".verdict.solved")).to_contain_text(LEVELS[number]["teaches"])
    assert page.evaluate(USUAL_MS) < 100
    page.reload()
    expect(page.locator(".verdict.solved")).to_be_visible()  # the address has the board
    page.goto(page.url.split("#")[0])
    expect(page.get_by_label(f"{number + 1}. {LEVELS[number]['name']}, solved")).to_be_visible()


def test_a_wrong_move_says_why_and_shows_its_consequence(opened: Open) -> None:
    page = opened("puzzles.html#level=3&rows=F0.F1.F2")
    page.get_by_label("place F3 of stage 0").click()
    expect(page.get_by_role("status")).to_contain_text("would keep 4 microbatches in flight, and 3")
    expect(page.locator(".refused")).to_have_text("F3")
    expect(page.locator(".task.fault")).to_have_count(3)
    page.get_by_label("place B0 of stage 0").click()  # waits for worker 1, and is allowed
    expect(page.locator(".refused")).to_have_count(0)
    page.get_by_label("place B0 of stage 1").click()
    expect(page.get_by_role("status")).to_contain_text("Worker 1 would wait for itself")


def test_a_circle_is_told_worker_by_worker(opened: Open) -> None:
    page = opened("puzzles.html#level=2&rows=F0.B0.F1_F0")
    page.get_by_label("place F1 of stage 1").click()
    said = page.get_by_role("status")
    expect(said).to_contain_text("Nobody could ever go on")
    for link in ("B0 of stage 0 waits for B0 of stage 1 on worker 1", "which stands before it"):
        expect(said).to_contain_text(link)


def test_a_move_that_costs_slots_says_how_many_and_why(opened: Open) -> None:
    page = opened("puzzles.html#level=2")
    for task, stage in zip(("F0",) * 3 + ("B0",) * 3, (0, 1, 2, 2, 1, 0), strict=True):
        page.get_by_label(f"place {task} of stage {stage}").click()
    expect(page.get_by_role("status")).to_contain_text("no order takes fewer than")


def test_keys_alone_play(opened: Open) -> None:
    page = opened("puzzles.html#level=2")
    page.locator("[data-task=F0]").first.focus()
    for key in ("f", "f", "ArrowDown", "f", "Backspace", "f", "ArrowUp", "z"):
        page.keyboard.press(key)
    expect(page.get_by_text("2 of 27 tasks placed")).to_be_visible()
    assert "rows=F0.F1_" in page.url


def test_the_sandbox_recognises_methods_under_other_costs(opened: Open) -> None:
    page = opened("puzzles.html#level=19")
    page.get_by_label("Begin with").select_option("PipeDream-Flush")
    expect(page.locator(".verdict")).to_contain_text("You built PipeDream-Flush")
    page.get_by_role("slider", name="link").fill("2")
    expect(page.locator(".verdict")).to_contain_text("above the best")
    page.get_by_label("Begin with").select_option("eager 1F1B")
    expect(page.locator(".verdict")).to_contain_text("eager 1F1B")


def test_the_trace_is_diagnosed_and_wrong_answers_have_reasons(opened: Open) -> None:
    page = opened("puzzles.html#level=18")
    expect(page.locator("canvas[data-explained=true]")).to_have_count(1)
    page.get_by_role("button", name="worker 0").click()
    expect(page.get_by_role("status").first).to_contain_text("Worker 0 takes 20")
    page.get_by_role("button", name="worker 2").click()
    page.get_by_role("button", name="links").click()
    expect(page.get_by_role("status").last).to_contain_text("ms less of 868 ms (simulated)")
    page.get_by_role("button", name="unequal stages").click()
    expect(page.locator(".verdict.solved")).to_be_visible()


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_all_fits_and_has_room_for_fingers(
    theme: str, width: int, opened: Open, screenshots: Path
) -> None:
    for number in (1, 7, 12, 15, 18, 19):
        page = opened(f"puzzles.html#level={number}", width, theme, touch=width < 600)
        page.keyboard.press("h")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(SMALL) == []
        page.screenshot(path=screenshots / f"puzzle_{number}_{theme}_{width}.png")


def test_a_finger_places_a_task(opened: Open) -> None:
    page = opened("puzzles.html", 390, touch=True)
    page.get_by_label("place F0 of stage 0").tap()
    expect(page.get_by_text("1 of 18 tasks placed")).to_be_visible()
