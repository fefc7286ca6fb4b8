"""One Chromium, a JupyterLab, and a folder of pages that need no kernel, for all tests here."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import mistune
import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from pipekit.explore import why_page
from pipekit.explore.browser.standalone import page as timelines
from pipekit.explore.puzzles.page import html
from pipekit.explore.why_slow import EXAMPLE, explanation
from pipekit.ledger.claims import outcomes
from pipekit.ledger.report import write
from pipekit.schedules import flush, gpipe
from pipekit.schedules.methods.by_name import METHODS
from pipekit.traces import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.browser.jupyterlab import Lab

CHROMIUM = shutil.which("chromium")
WITHIN_MS = 120_000
"""A page's answer on a machine with other work: it only ends a hang."""
SMALL = {"stage_counts": "2", "microbatches": 2, "batch_rows": 20, "epochs": 1}
"""The quickstart's parameters here; with them go fewer images."""
IMAGES = "mnist(rows=5000, test_rows=1000)", "mnist(rows=600, test_rows=100)"
MANY = """
from pipekit.explore import TimelineCanvas
from pipekit.schedules import pipedream
from pipekit.traces import Trace

canvas = TimelineCanvas()
canvas.show(Trace.from_schedule(pipedream(8).take(2090)))
canvas
"""
AXE = "build/axe/node_modules/axe-core/axe.min.js"
HURTS = """() => axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => [each.id, ...each.nodes.map(node => node.html.slice(0, 120))]))"""
"""What hinders readers with a screen reader, a keyboard, or weak eyes (WCAG 2, by axe-core)."""
HTML = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>page</title>"
    "<meta name=viewport content='width=device-width'><style>:root {color-scheme: light dark; background: Canvas}</style>"
)
"""The site's theme gives a page the like."""
PLAYED = "flush", "gpipe", "dualpipe"

Open = Callable[..., "Page"]
Hurts = Callable[["Page"], list[list[str]]]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the browser where there is none; JupyterLab has a process of its own."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.xdist_group("lab" if "lab" in item.fixturenames else "pages"))  # type: ignore[attr-defined]
        if CHROMIUM is None:
            item.add_marker(pytest.mark.skip("chromium is not installed: make chromium"))


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from tests.browser.jupyterlab import chromium  # here, where playwright is known to be there

    assert CHROMIUM is not None
    with chromium(CHROMIUM) as running:
        yield running


@pytest.fixture(scope="session")
def lab(
    browser: "Browser", repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Lab]":
    """JupyterLab with copies of the notebooks; the quickstart runs while others are looked at."""
    from tests.browser.jupyterlab import jupyterlab

    folder = tmp_path_factory.mktemp("notebooks")
    for notebook in (repository / "notebooks" / "explore").glob("*.ipynb"):
        shutil.copy(notebook, folder)
    quickstart = load_notebook_node(str(repository / "notebooks" / "quickstart.ipynb"))
    for cell in quickstart.cells:
        cell.source = cell.source.replace(*IMAGES)
    assert IMAGES[1] in "".join(cell.source for cell in quickstart.cells)
    small = parameterize_notebook(quickstart, {**SMALL, "results_dir": str(folder / "results")})
    nbformat.write(small, folder / "quickstart.ipynb")
    tables = {"reference_dir": str(repository / "results" / "reference" / "staleness")}
    staleness = load_notebook_node(str(folder / "staleness.ipynb"))
    nbformat.write(parameterize_notebook(staleness, tables), folder / "staleness.ipynb")
    many = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(MANY)])
    many.metadata.kernelspec = quickstart.metadata.kernelspec
    nbformat.write(many, folder / "many.ipynb")
    with jupyterlab(folder, browser, tmp_path_factory.mktemp("jupyterlab")) as lab:
        lab.run("quickstart.ipynb", own_kernel=True)
        yield lab
        assert lab.hosts == {"127.0.0.1"}


@pytest.fixture
def screenshots(repository: Path) -> Path:
    folder = repository / "results" / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def of_site(repository: Path, name: str) -> ModuleType:
    """Return a part of the site's build."""
    spec = importlib.util.spec_from_file_location(name, repository / f"docs/site/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a folder with the pages."""
    folder = tmp_path_factory.mktemp("pages")
    course, play = of_site(repository, "course"), of_site(repository, "play")
    given: dict[str, Any] = {"METHODS": {name: METHODS[name] for name in PLAYED}}
    vars(play).update(given)
    traces = [Trace.from_schedule(method(4, 4).take(1)) for method in (gpipe, flush)]
    text = (repository / "docs/why_pipelines_idle.md").read_text(encoding="utf-8")
    article = mistune.create_markdown(escape=False, plugins=["table"])(text)
    lecture = '<div id="lecture" class="slides"></div>'
    head = f"{HTML}<style>{course.styles()}</style>"
    for name, page in {
        "puzzles": html(),
        "timeline": timelines("GPipe and 1F1B", traces),
        "why": why_page.html(explanation(EXAMPLE)),
        "play": HTML + play.body(folder / "_static"),
        "article": f"{head}{article}<script>{course.timelines()}</script>",
        "slides": f"{head}{lecture}<script>{course.slides()}</script>",
    }.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    write(outcomes(repository / "results/reference/papers"), folder)
    if (built := repository / "build/site").is_dir():
        (folder / "site").symlink_to(built)
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def hurts(repository: Path) -> Hurts:
    """A function that returns a page's serious faults for readers, each with its elements."""
    if not (axe := repository / AXE).exists():
        pytest.skip("axe-core is not installed: make axe")
    code = axe.read_text(encoding="utf-8")

    def judged(page: "Page") -> list[list[str]]:
        page.evaluate(f"{code};0")
        found: list[list[str]] = page.evaluate(HURTS)
        return found

    return judged


@pytest.fixture
def opened(browser: "Browser", served: str) -> Iterator[Open]:
    """A function that opens a page, of which no script may fail and no other host be asked."""
    from playwright.sync_api import expect

    expect.set_options(timeout=WITHIN_MS)
    contexts: list[BrowserContext] = []
    failed: list[str] = []

    def ask(url: str) -> None:
        if not url.startswith((served, "data:", "blob:")):
            failed.append(url)

    def open_page(
        name: str,
        width: int = 1440,
        theme: Literal["light", "dark"] = "light",
        touch: bool = False,
    ) -> "Page":
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, has_touch=touch
        )
        contexts.append(context)
        context.set_default_timeout(WITHIN_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("request", lambda asked: ask(asked.url))
        page.goto(f"{served}/{name}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert failed == []
