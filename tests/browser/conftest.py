"""One Chromium, a JupyterLab, and a folder of pages that need no kernel, for all tests here."""

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.browser.jupyterlab import Lab

CHROMIUM = shutil.which("chromium")
WITHIN_MS = 300_000
"""A page's answer on a machine with other work: it only ends a hang."""
AXE = "build/axe/node_modules/axe-core/axe.min.js"
HURTS = """() => axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => [each.id, ...each.nodes.map(node => node.html.slice(0, 120))]))"""
"""What hinders readers with a screen reader, a keyboard, or weak eyes (WCAG 2, by axe-core)."""
Open = Callable[..., "Page"]
Hurts = Callable[["Page"], list[list[str]]]


collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the browser, and skip them where there is none."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
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
    from tests.browser.pages import write_notebooks

    folder = tmp_path_factory.mktemp("notebooks")
    write_notebooks(folder, repository)
    with jupyterlab(folder, browser, tmp_path_factory.mktemp("jupyterlab")) as lab:
        lab.run("quickstart.ipynb", own_kernel=True)
        yield lab
        assert lab.hosts == {"127.0.0.1"}


@pytest.fixture
def screenshots(repository: Path) -> Path:
    folder = repository / "results" / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a folder with the pages."""
    from tests.browser.pages import serving, write_pages

    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder, repository)
    with serving(folder) as address:
        yield address


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
        name: str, width: int = 1440, theme: Literal["light", "dark"] = "light", touch: bool = False
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
