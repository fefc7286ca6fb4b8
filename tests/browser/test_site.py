"""The site's page on which the explorer of timelines is alive, opened from a folder."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.jupyterlab import WIDTHS


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("play.html", WIDTHS["laptop"])


def titled(page: Page, *starts: str) -> None:
    """Wait until the timelines of these methods are painted, explained."""
    for number, start in enumerate(starts):
        expect(page.locator(".pipekit-title").nth(number)).to_contain_text(start)
    expect(page.locator("canvas[data-explained=true]")).to_have_count(len(starts))


def test_two_methods_stand_on_one_axis_without_a_kernel(page: Page, screenshots: Path) -> None:
    titled(page, "PipeDream-Flush: bubble 27.3 %", "GPipe: bubble 27.3 %")
    for device, width in reversed(WIDTHS.items()):  # it stays as wide as a laptop
        page.set_viewport_size({"width": width, "height": 1000})
        canvas = page.locator(".pipekit-timeline > canvas").first
        expect(canvas).to_have_attribute("data-width", str(canvas.evaluate("e => e.clientWidth")))
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(path=screenshots / f"site_{device}.png", scale="css")


def test_a_setting_that_cannot_be_is_refused_and_another_is_shown(page: Page) -> None:
    page.locator("select[name=microbatches]").select_option("4")
    page.locator("select[name=method]").select_option("dualpipe")
    expect(page.locator("#told")).to_contain_text("at least one a stage")
    titled(page, "GPipe")
    page.locator("select[name=microbatches]").select_option("16")
    titled(page, "DualPipe", "GPipe")
    assert "method=dualpipe&beside=gpipe&stages=4&microbatches=16&link=free" in page.url


def test_a_click_says_why_and_both_play_together(page: Page) -> None:
    titled(page, "PipeDream-Flush", "GPipe")
    first, second = (page.locator(".pipekit-timeline > canvas").nth(n) for n in range(2))
    first.click(position={"x": 330, "y": 20})
    told = page.locator(".pipekit-tip:visible")
    expect(told).to_contain_text("worker 0")
    expect(told).to_contain_text(re.compile(r"in sum: \d+ passes one after another"))
    expect(told).to_be_in_viewport(ratio=1)
    tools = page.locator(".pipekit-tools").first.bounding_box()
    box = told.bounding_box()
    assert tools is not None
    assert box is not None
    assert box["y"] >= tools["y"] + tools["height"], "the reasons cover the controls"
    first.press("Escape")
    painted = int(second.get_attribute("data-painted") or 0)
    first.press(",")
    expect(second).not_to_have_attribute("data-painted", str(painted))


def test_an_explanation_shows_a_step_and_the_step_without_each_cause(opened: Open) -> None:
    page = opened("why.html")
    titles = page.locator(".pipekit-title")
    expect(titles.nth(0)).to_contain_text("PipeDream-Flush: bubble")
    expect(titles.nth(1)).to_contain_text("PipeDream-Flush without unequal stages")
    expect(page.locator("canvas[data-explained=true]")).to_have_count(4)
    expect(page.locator("table").first).to_contain_text("Stage 1 takes 40% longer")
