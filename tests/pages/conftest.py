"""Pages that need no kernel, in Chromium, served from a folder."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import mistune
import pytest

from pipekit.explore.browser.standalone import page as timelines
from pipekit.explore.puzzles.page import html
from pipekit.ledger.claims import outcomes
from pipekit.ledger.report import write
from pipekit.schedules import flush, gpipe
from pipekit.traces import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium")
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

Open = Callable[..., "Page"]
Hurts = Callable[["Page"], list[list[str]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the browser where there is none."""
    for item in items:
        if CHROMIUM is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip("chromium is not installed: make chromium"))


def of_site(repository: Path, name: str) -> ModuleType:
    """Return a part of the site's build."""
    spec = importlib.util.spec_from_file_location(name, repository / f"docs/site/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(repository / "docs/site"))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a folder with the pages."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "puzzles.html").write_text(html(), encoding="utf-8")
    traces = [Trace.from_schedule(method(4, 4).take(1)) for method in (gpipe, flush)]
    (folder / "timeline.html").write_text(timelines("GPipe and 1F1B", traces), encoding="utf-8")
    write(outcomes(repository / "results/reference/papers"), folder)
    if (built := repository / "build/site").is_dir():
        (folder / "site").symlink_to(built)
    course = of_site(repository, "course")
    text = (repository / "docs/why_pipelines_idle.md").read_text(encoding="utf-8")
    body = mistune.create_markdown(escape=False, plugins=["table"])(text)
    for name, inner, script in (
        ("article", body, course.timelines()),
        ("slides", '<div id="lecture" class="slides"></div>', course.slides()),
    ):
        page = f"{HTML}<style>{course.styles()}</style>{inner}<script>{script}</script>"
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


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


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: "Browser", served: str) -> Iterator[Open]:
    """A function that opens a page, of which no script may fail and no other host be asked."""
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
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("request", lambda asked: ask(asked.url))
        page.goto(f"{served}/{name}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert failed == []
