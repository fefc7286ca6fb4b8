"""The notebooks in a real JupyterLab: sliders move, figures follow, and no request leaves the page.

Screenshots go to results/runs/browser.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import CELLS_S, FRAMES, WIDTHS, Lab

TOLD = ".pipekit-title, .pipekit-chart .g-gtitle, .pipekit-explorer .jp-RenderedHTMLCommon"
INK = "e => getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']"
CUT_OFF = """chart => {
    const room = chart.getBoundingClientRect();
    const leaves = at => at.width && (at.left < room.left - 2 || at.right > room.right + 2);
    const texts = [...chart.querySelectorAll('text')];
    return texts.filter(e => leaves(e.getBoundingClientRect())).map(e => e.textContent);
}"""
INKED = {"timeline": ".pipekit-title", "search": ".pipekit-chart .g-gtitle text"}
"""A text of some explorers."""
TURNED = """chart => [...chart.querySelectorAll('.xtick text')]
    .filter(e => /rotate\\([^0]/.test(e.getAttribute('transform'))).length"""
PANEL = """chart => chart.querySelector('.nsewdrag').getBoundingClientRect().width
    / chart.clientWidth"""
"""What part of a chart's width is its panel."""
BACKGROUND = "element => getComputedStyle(element).getPropertyValue('--jp-layout-color0').trim()"


@pytest.fixture(autouse=True)
def _no_error(lab: Lab) -> Iterator[None]:
    yield
    assert lab.errors == []


@pytest.mark.parametrize(
    ("name", "slider"),
    [
        ("timeline", "stages"),
        ("search", "memory cap (step)"),
    ],
)
def test_an_explorer_follows_a_slider(name: str, slider: str, lab: Lab, screenshots: Path) -> None:
    notebook = lab.opened(name)
    lab.photographed(name, screenshots)
    told = notebook.locator(TOLD)
    before = told.all_text_contents()
    row_of(notebook, slider).locator(".noUi-handle").press("ArrowRight")
    lab.until(lambda: told.all_text_contents() != before)


def test_the_picture_for_readers_without_a_kernel_is_saved_and_not_seen(lab: Lab) -> None:
    notebook = lab.opened("timeline")
    still = notebook.locator(".jp-RenderedSVG")
    expect(still).to_have_count(1, timeout=1000 * CELLS_S)
    expect(still).to_be_hidden()
    (outputs,) = (cell["outputs"] for cell in lab.cells("timeline.ipynb") if cell["outputs"])
    (picture,) = (each["data"] for each in outputs if "image/svg+xml" in each["data"])
    assert "PipeDream: bubble" in "".join(picture["image/svg+xml"])


def test_pictures_dim_while_the_kernel_works(lab: Lab) -> None:
    notebook = lab.opened("timeline")
    seen = notebook.locator(".pipekit-seen")
    expect(seen).to_have_css("opacity", "1")
    notebook.locator(".pipekit-waits").evaluate("e => { e.textContent = 'Working ...' }")
    expect(seen).to_have_css("opacity", "0.35")
    notebook.locator(".pipekit-waits").evaluate("e => { e.textContent = '' }")
    expect(seen).to_have_css("opacity", "1")


def test_hovering_a_bar_names_its_microbatch_and_version(lab: Lab) -> None:
    bars = at_its_beginning(lab).locator(".pipekit-timeline > canvas").first
    bars.hover(position={"x": 112, "y": 20})  # the first bar of worker 0
    tip = lab.page.locator(".pipekit-tip:visible").inner_text().splitlines()
    assert tip[:4] == ["forward", "worker 0, stage 0", "microbatch 0", "reads version 0"]


def differ(some: list[str], others: list[str]) -> bool:
    """Return whether all images of one list differ from those of the other."""
    return all(now != then for now, then in zip(some, others, strict=True))


def pixels(canvases: Locator) -> list[str]:
    images: list[str] = canvases.evaluate_all("all => all.map(canvas => canvas.toDataURL())")
    return images


@pytest.mark.parametrize(
    ("name", "change", "back"),
    [
        ("zoom", lambda canvas, _: canvas.press("+"), lambda canvas, _: canvas.press("0")),
        ("critical_path", lambda canvas, _: canvas.press("c"), lambda canvas, _: canvas.press("c")),
        ("until", lambda _, clock: clock.fill("0.5"), lambda _, clock: clock.fill("1")),
    ],
)
def test_both_timelines_change_together_and_back_again(
    name: str,
    change: Callable[[Locator, Locator], None],
    back: Callable[[Locator, Locator], None],
    lab: Lab,
    screenshots: Path,
) -> None:
    notebook = at_its_beginning(lab)
    canvases = notebook.locator(".pipekit-timeline > canvas")
    clock = notebook.locator(".pipekit-tools input").first
    whole = pixels(canvases)
    change(canvases.first, clock)
    lab.until(lambda: differ(pixels(canvases), whole))
    lab.page.screenshot(path=screenshots / f"{name}.png", scale="css")
    back(canvases.first, clock)
    lab.until(lambda: pixels(canvases) == whole)


def test_a_click_on_a_gap_says_all_that_is_waited_for(lab: Lab, screenshots: Path) -> None:
    notebook = at_its_beginning(lab)
    canvases = notebook.locator(".pipekit-timeline > canvas")
    canvases.first.click(position={"x": 180, "y": 20})  # worker 0, before its first backward
    tip = lab.page.locator(".pipekit-tip:visible")
    lines = tip.inner_text().splitlines()
    assert lines[0] == "idle, worker 0"
    assert lines[1].startswith("gradient: ")
    assert lines[2] == "before B0 of stage 0, which needs B0 of stage 1 on worker 1"
    assert lines[3].endswith("worker 2's B0 of stage 2")
    assert any(line.startswith("in sum: ") for line in lines)
    assert lines[-1] == "F0 of stage 0 began at 0 ms, and waited for nothing", "the chain's end"
    lab.page.evaluate(FRAMES)
    lab.page.screenshot(path=screenshots / "why.png", scale="css")
    canvases.first.press("Escape")
    expect(tip).to_have_count(0)


def test_bars_are_coloured_by_what_is_chosen_on_all_canvases(lab: Lab, screenshots: Path) -> None:
    notebook = at_its_beginning(lab)
    canvases = notebook.locator(".pipekit-timeline > canvas")
    seen = [pixels(canvases)]
    menu = notebook.locator(".pipekit-timeline select").first
    for colored in ("version", "stage", "cause"):
        menu.select_option(colored)
        lab.until(lambda: all(differ(pixels(canvases), before) for before in seen))
        lab.page.screenshot(path=screenshots / f"by_{colored}.png", scale="css")
        seen.append(pixels(canvases))
    menu.select_option("op")
    lab.until(lambda: pixels(canvases) == seen[0])


def test_dragging_with_shift_measures_a_time_until_escape(lab: Lab, screenshots: Path) -> None:
    notebook = at_its_beginning(lab)
    canvas = notebook.locator(".pipekit-timeline > canvas").first
    lab.settled(notebook)
    before = pixels(canvas)
    from_ms, to_ms = (time_at(lab, canvas, x) for x in (200, 500))
    canvas.hover(position={"x": 200, "y": 20})
    lab.page.keyboard.down("Shift")
    lab.page.mouse.down()
    canvas.hover(position={"x": 350, "y": 24})
    canvas.hover(position={"x": 500, "y": 20})
    lab.page.mouse.up()
    lab.page.keyboard.up("Shift")
    lab.until(lambda: bool(canvas.get_attribute("data-measured")))
    lab.page.screenshot(path=screenshots / "measured.png", scale="css")
    measured, unit = (canvas.get_attribute("data-measured") or "").split()
    assert unit == "ms"
    assert float(measured) == pytest.approx(to_ms - from_ms, abs=0.01)
    canvas.press("Escape")
    canvas.hover(position={"x": 4, "y": 4})  # over no bar
    lab.until(lambda: pixels(canvas) == before)


def time_at(lab: Lab, canvas: Locator, x: float) -> float:
    """Return the time that hovering over worker 0's bytes tells, in ms."""
    canvas.hover(position={"x": x, "y": 70})
    told = lab.page.locator(".pipekit-tip:visible").inner_text().splitlines()[0]
    return float(told.removesuffix(" ms").rpartition(" ")[2])


def test_the_picture_is_saved_with_its_title_and_legend(lab: Lab, tmp_path: Path) -> None:
    notebook = at_its_beginning(lab)
    title = notebook.locator(".pipekit-title").first.text_content()
    with lab.page.expect_download() as saved:
        notebook.get_by_text("SVG", exact=True).first.click()
    saved.value.save_as(tmp_path / "timeline.svg")
    texts = [each.text for each in ElementTree.parse(tmp_path / "timeline.svg").iter() if each.text]
    assert title in texts
    named = {"forward, activations", "backward, gradients", "waits for a pass"}
    assert named | {"worker 0", "time (ms)"} <= {*texts}
    with lab.page.expect_download() as saved:
        notebook.get_by_text("PNG", exact=True).first.click()
    saved.value.save_as(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def at_its_beginning(lab: Lab) -> Locator:
    """Show the timelines' explorer, PipeDream beside GPipe, whatever it has shown before."""
    notebook = lab.opened("timeline")
    presets = notebook.locator(".pipekit-setting select")
    presets.select_option("what a flush costs")  # else the titles could be those of before
    shows(notebook, "^PipeDream-Flush", "^PipeDream-2BW")
    presets.select_option("PipeDream beside GPipe")
    shows(notebook, "^PipeDream:", "^GPipe:")
    return notebook


def shows(notebook: Locator, *titles: str) -> None:
    """Wait until there are timelines with these titles, explained."""
    within = 1000 * CELLS_S
    expect(notebook.locator(".pipekit-title")).to_have_text(
        [*map(re.compile, titles)], timeout=within
    )
    explained = notebook.locator(".pipekit-timeline > canvas[data-explained=true]")
    expect(explained).to_have_count(len(titles), timeout=within)


def test_on_a_phone_a_charts_text_is_whole_and_its_panel_wide(lab: Lab) -> None:
    notebook, size = lab.opened("search"), lab.page.viewport_size
    assert size is not None
    lab.page.set_viewport_size({**size, "width": WIDTHS["phone"]})
    try:
        lab.settled(notebook)
        chart = notebook.locator(".pipekit-chart").first
        assert chart.evaluate(CUT_OFF) == []
        assert chart.evaluate(TURNED) == 0
        assert chart.evaluate(PANEL) > 0.6
    finally:
        lab.page.set_viewport_size(size)


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_text_stands_out_from_both_themes(theme: str, lab: Lab) -> None:
    lab.theme(theme)
    for name, text in INKED.items():
        notebook = lab.opened(name)
        lab.until(partial(stands_out, notebook, text))


def stands_out(notebook: Locator, text: str) -> bool:
    return contrast(notebook, text) >= 7  # WCAG 2, level AAA


def contrast(notebook: Locator, text: str) -> float:
    page = luminance(notebook.evaluate(BACKGROUND))
    ink = luminance(notebook.locator(text).first.evaluate(INK))
    return (max(page, ink) + 0.05) / (min(page, ink) + 0.05)


def luminance(color: str) -> float:
    """Return a CSS colour's relative luminance (WCAG 2)."""
    numbers = re.findall(r"[\d.]+", color)
    if color.startswith("#"):
        digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        numbers = [str(int(digits[i : i + 2], 16)) for i in (0, 2, 4)]
    elif not numbers:
        numbers = {"white": ["255"] * 3, "black": ["0"] * 3}[color]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (float(number) / 255 for number in numbers[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_schedule_of_ones_own_is_checked_drawn_and_trained(lab: Lab, screenshots: Path) -> None:
    notebook = lab.opened("own_schedule")
    text, train = notebook.locator("textarea"), notebook.get_by_role("button", name="Train with it")
    text.fill("worker 0 | B0 F0^")
    notebook.get_by_text("waits in B0 of stage 0 for F0").wait_for()
    assert train.is_disabled()
    lab.page.screenshot(path=screenshots / "own_schedule_error.png", scale="css")

    text.fill("# mine\nworker 0 | F0 F1 .  .  B0 -  B1 -^\nworker 1 | .  F0 B0 -  F1 B1 -^")
    notebook.get_by_text("mine, as drawn").wait_for()
    train.click()
    notebook.get_by_text("mine, as executed").wait_for()
    notebook.locator(".pipekit-chart .g-gtitle", has_text="Trained: loss").wait_for()
    lab.photographed("own_schedule", screenshots)


def test_50_000_bars_are_painted(lab: Lab, screenshots: Path) -> None:
    canvas = lab.opened("many").locator(".pipekit-timeline > canvas")
    assert int(canvas.get_attribute("data-bars") or 0) > 50_000
    lab.page.screenshot(path=screenshots / "many.png", scale="css")


def row_of(notebook: Locator, slider: str) -> Locator:
    return notebook.locator(".widget-hslider", has=notebook.page.get_by_text(slider, exact=True))


def test_the_quickstart_runs_to_its_end(lab: Lab, screenshots: Path) -> None:
    cells = lab.cells("quickstart.ipynb")
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [o["evalue"] for o in outputs if o["output_type"] == "error"] == []
    figures = [o for o in outputs if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) >= 5
    notebook = lab.show("quickstart.ipynb")
    notebook.locator(".js-plotly-plot .main-svg").first.scroll_into_view_if_needed()
    lab.page.screenshot(path=screenshots / "quickstart.png", scale="css")
