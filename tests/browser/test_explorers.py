"""The notebooks in a real JupyterLab: sliders move, figures follow, and no request leaves the page.

Times are printed, and decide nothing.  Screenshots go to results/runs/browser.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")

from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import CELLS_S, Lab, jupyterlab

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: make chromium"),
]

SMALL = {"stage_counts": "2", "microbatches": 2, "batch_rows": 20, "epochs": 1}
"""The quickstart's parameters here; with them go fewer images."""
IMAGES = "mnist(rows=5000, test_rows=1000)", "mnist(rows=600, test_rows=100)"
MANY = """
from pipekit.explore import TimelineCanvas, picture
from pipekit.schedules import pipedream
from pipekit.traces import Trace

canvas = TimelineCanvas()
canvas.show(picture(Trace.from_schedule(pipedream(8, 2090))))
canvas
"""
TITLES = ".pipekit-title, .pipekit-chart .g-gtitle"
DURATIONS = "name => performance.getEntriesByName(name).map(entry => entry.duration)"
INK = "e => getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']"
BACKGROUND = "element => getComputedStyle(element).getPropertyValue('--jp-layout-color0').trim()"


@pytest.fixture(scope="module")
def lab(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with copies of the notebooks; the quickstart runs while others are looked at."""
    folder = tmp_path_factory.mktemp("notebooks")
    for notebook in (repository / "notebooks" / "explore").glob("*.ipynb"):
        shutil.copy(notebook, folder)
    quickstart = load_notebook_node(str(repository / "notebooks" / "quickstart.ipynb"))
    for cell in quickstart.cells:
        cell.source = cell.source.replace(*IMAGES)
    assert IMAGES[1] in "".join(cell.source for cell in quickstart.cells)
    small = parameterize_notebook(quickstart, {**SMALL, "results_dir": str(folder / "results")})
    nbformat.write(small, folder / "quickstart.ipynb")
    many = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(MANY)])
    many.metadata.kernelspec = quickstart.metadata.kernelspec
    nbformat.write(many, folder / "many.ipynb")
    assert CHROMIUM is not None
    with jupyterlab(folder, CHROMIUM, tmp_path_factory.mktemp("jupyterlab")) as lab:
        lab.run("quickstart.ipynb", own_kernel=True)
        yield lab


@pytest.fixture(autouse=True)
def _no_error_and_no_request_elsewhere(lab: Lab) -> Iterator[None]:
    yield
    assert lab.errors == []
    assert lab.hosts == {"127.0.0.1"}


@pytest.fixture
def screenshots(repository: Path) -> Path:
    folder = repository / "results" / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def opened(lab: Lab, name: str) -> Locator:
    """Run an explorer's notebook, wait for its figures, and return it."""
    lab.run(f"{name}.ipynb")
    notebook = lab.show(f"{name}.ipynb")
    notebook.locator(".pipekit-chart, .pipekit-timeline").first.wait_for()
    lab.painted(notebook)
    return notebook


def photographed(lab: Lab, name: str, folder: Path) -> None:
    for theme in ("Dark", "Light"):
        lab.theme(theme)
        lab.page.wait_for_timeout(300)
        lab.page.screenshot(path=folder / f"{name}_{theme.lower()}.png", scale="css")


@pytest.mark.parametrize(
    ("name", "slider"),
    [
        ("timeline", "stages"),
        ("memory", "stages"),
        ("planner", "workers"),
        ("search", "memory cap"),
    ],
)
def test_an_explorer_follows_a_slider(name: str, slider: str, lab: Lab, screenshots: Path) -> None:
    notebook = opened(lab, name)
    photographed(lab, name, screenshots)
    first = notebook.locator(TITLES).first
    before = first.text_content() or ""
    row = notebook.locator(".widget-hslider", has_text=slider)
    row.locator(".noUi-handle").press("ArrowRight")
    expect(first).not_to_have_text(before, timeout=1000 * CELLS_S)


def test_hovering_a_bar_names_its_microbatch_and_version(lab: Lab) -> None:
    bars = lab.show("timeline.ipynb").locator(".pipekit-timeline > canvas").first
    bars.hover(position={"x": 112, "y": 20})  # the first bar of worker 0
    tip = lab.page.locator(".pipekit-tip:visible").inner_text().splitlines()
    assert tip[:4] == ["forward", "worker 0, stage 0", "microbatch 0", "reads version 0"]


def test_both_timelines_zoom_together_and_show_all_again(lab: Lab) -> None:
    notebook = lab.show("timeline.ipynb")
    canvases = notebook.locator(".pipekit-timeline > canvas")
    whole = pixels(canvases)
    canvases.first.press("+")
    lab.page.wait_for_timeout(200)
    assert all(now != then for now, then in zip(pixels(canvases), whole, strict=True))
    canvases.first.press("0")
    lab.page.wait_for_timeout(200)
    assert pixels(canvases) == whole


def pixels(canvases: Locator) -> list[str]:
    images: list[str] = canvases.evaluate_all("all => all.map(canvas => canvas.toDataURL())")
    return images


def test_the_critical_path_is_shown_and_hidden_by_a_key(lab: Lab, screenshots: Path) -> None:
    notebook = lab.show("timeline.ipynb")
    canvases = notebook.locator(".pipekit-timeline > canvas")
    without = pixels(canvases)
    canvases.first.press("c")
    lab.page.wait_for_timeout(200)
    lab.page.screenshot(path=screenshots / "critical_path.png", scale="css")
    first, *others = pixels(canvases)
    assert first != without[0]
    assert others == without[1:]
    canvases.first.press("c")
    lab.page.wait_for_timeout(200)
    assert pixels(canvases) == without


def test_a_run_is_shown_until_the_sliders_time_on_all_canvases(lab: Lab) -> None:
    notebook = lab.show("timeline.ipynb")
    canvases = notebook.locator(".pipekit-timeline > canvas")
    whole = pixels(canvases)
    clock = notebook.locator(".pipekit-tools input").first
    clock.fill("0.5")
    lab.page.wait_for_timeout(200)
    assert all(now != then for now, then in zip(pixels(canvases), whole, strict=True))
    clock.fill("1")
    lab.page.wait_for_timeout(200)
    assert pixels(canvases) == whole


@pytest.mark.parametrize("theme", ["Dark", "Light"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("timeline", ".pipekit-title"), ("planner", ".pipekit-chart .g-gtitle text")],
)
def test_text_stands_out_from_both_themes(name: str, text: str, theme: str, lab: Lab) -> None:
    notebook = lab.show(f"{name}.ipynb")
    lab.theme(theme)
    deadline = time.monotonic() + CELLS_S  # figures follow a theme when they are drawn again
    while contrast(notebook, text) < 7 and time.monotonic() < deadline:
        lab.page.wait_for_timeout(50)
    assert contrast(notebook, text) >= 7  # WCAG 2, level AAA


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
    notebook = opened(lab, "own_schedule")
    text, train = notebook.locator("textarea"), notebook.get_by_role("button", name="Train with it")
    text.fill("worker 0 | B0 F0^")
    marks = notebook.locator("mark")
    marks.first.wait_for()
    assert marks.all_inner_texts() == ["B0", "F0"]
    assert train.is_disabled()
    lab.page.screenshot(path=screenshots / "own_schedule_error.png", scale="css")

    text.fill("# mine\nworker 0 | F0 F1 .  .  B0 -  B1 -^\nworker 1 | .  F0 B0 -  F1 B1 -^")
    notebook.get_by_text("mine, as drawn").wait_for()
    assert marks.count() == 0
    train.click()
    notebook.get_by_text("mine, as executed").wait_for()
    notebook.locator(".pipekit-chart .g-gtitle", has_text="Trained with it").wait_for()
    photographed(lab, "own_schedule", screenshots)


def test_50_000_bars_are_painted(
    lab: Lab, screenshots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = opened(lab, "many")
    canvas = notebook.locator(".pipekit-timeline > canvas")
    assert int(canvas.get_attribute("data-bars") or 0) > 50_000
    lab.page.screenshot(path=screenshots / "many.png", scale="css")
    seconds = max(lab.page.evaluate(DURATIONS, "pipekit timeline")) / 1000
    with capsys.disabled():
        print(f"\n50,160 bars painted in at most {seconds:.3f} s (measured)")


def test_the_quickstart_runs_to_its_end(lab: Lab, screenshots: Path) -> None:
    cells = lab.cells("quickstart.ipynb")
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [o["evalue"] for o in outputs if o["output_type"] == "error"] == []
    figures = [o for o in outputs if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) >= 5
    notebook = lab.show("quickstart.ipynb")
    notebook.locator(".js-plotly-plot .main-svg").first.scroll_into_view_if_needed()
    lab.page.screenshot(path=screenshots / "quickstart.png", scale="css")
