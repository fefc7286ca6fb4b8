"""The article and an explanation in Chromium: numbers follow sliders."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.jupyterlab import SCREENS

USUAL_MS = """() => performance.getEntriesByName('pipekit article').at(-1).duration"""

PIXEL = """(canvas, [x, y]) => [...canvas.getContext('2d')
    .getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]"""


def set_to(page: Page, knob: str, value: float) -> None:
    page.locator(f".knob[data-name={knob}] input").first.fill(f"{value:g}")


@pytest.mark.parametrize(("p", "m", "b"), [(4, 4, 2), (2, 8, 1), (6, 3, 4)])
def test_formulas_are_what_the_pictures_show(p: int, m: int, b: int, opened: Open) -> None:
    page = opened("article.html")
    for knob, value in {"p": p, "m": m, "b": b}.items():
        set_to(page, knob, value)
    title = page.locator("[data-methods=gpipe] .pipekit-title")
    bubble, slots = 100 * (p - 1) / (m + p - 1), (m + p - 1) * (1 + b)
    expect(title).to_have_text(f"GPipe: bubble {bubble:.1f} % of {slots} slots (exact)")
    shown = page.locator('.value[data-formula="(p - 1) / (m + p - 1)"]').first
    expect(shown).to_have_text(f"{bubble:.1f} %")
    assert page.evaluate(USUAL_MS) < 1000  # of nine timelines, on a busy machine


def test_two_sliders_of_one_name_agree(opened: Open) -> None:
    page = opened("article.html")
    set_to(page, "l", 0)
    links = page.locator("[data-link] .pipekit-title")
    expect(links.first).to_contain_text("42.9 %")
    set_to(page, "l", 2)
    expect(links.first).not_to_contain_text("42.9 %")


def test_a_gap_says_whom_it_waits_for(opened: Open) -> None:
    page = opened("article.html")
    canvas = page.locator("[data-methods=gpipe] canvas[data-explained=true]").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] / 2, "y": 20})
    expect(page.locator("[data-methods=gpipe] .pipekit-tip")).to_contain_text("gradient")


def test_hovering_a_pass_dims_all_other_microbatches(opened: Open) -> None:
    page = opened("timeline.html")
    canvas = page.locator("canvas[data-explained=true]").first
    first, last = (canvas.evaluate(PIXEL, [120, 12]), canvas.evaluate(PIXEL, [1000, 12]))
    canvas.hover(position={"x": 120, "y": 20})
    expect(page.locator(".pipekit-tip").first).to_contain_text("microbatch 0")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert canvas.evaluate(PIXEL, [120, 12]) == first
    dimmed = canvas.evaluate(PIXEL, [1000, 12])
    assert [255 - shade for shade in dimmed[:3]] < [0.6 * (255 - shade) for shade in last[:3]]


@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_timelines_fit_their_page(theme: str, width: int, opened: Open, screenshots: Path) -> None:
    page = opened("article.html", width, theme)
    page.screenshot(path=screenshots / f"article_{theme}_{width}.png")
    canvas = page.locator("canvas[data-painted]").first
    expect(canvas).to_be_visible()
    assert canvas.evaluate("e => e.getBoundingClientRect().right") <= width


def test_an_explanation_shows_a_step_and_the_step_without_each_cause(opened: Open) -> None:
    page = opened("why.html")
    titles = page.locator(".pipekit-title")
    expect(titles.nth(0)).to_contain_text("PipeDream-Flush: bubble")
    expect(titles.nth(1)).to_contain_text("PipeDream-Flush without unequal stages")
    expect(page.locator("canvas[data-explained=true]")).to_have_count(4)
    expect(page.locator("table").first).to_contain_text("Stage 1 takes 40% longer")
