"""No page hinders readers with a screen reader, a keyboard or weak eyes."""

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")

from tests.browser.conftest import Hurts, Open
from tests.browser.jupyterlab import SCREENS

pytestmark = pytest.mark.browser

MADE = (
    "article",
    "slides",
    "timeline",
    "report",
    *(f"puzzles.html#level={n}" for n in (1, 7, 15, 18, 19)),
)
MAIN = (
    *("index", "start", "play", "cost", "papers", "methods/index", "methods/zb-v"),
    *("course/index", "gallery/index", "api/pipekit"),
)


@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", MADE)
def test_pages_that_need_no_site(
    name: str, width: int, theme: str, opened: Open, hurts: Hurts
) -> None:
    page = opened(name if "." in name else f"{name}.html", width, theme)
    page.keyboard.press("h")  # in a puzzle, a hint
    assert hurts(page) == []
    if name != "report":  # whose tables are as wide as the papers'
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", MAIN)
def test_the_sites_ten_main_pages(
    name: str, width: int, theme: str, opened: Open, hurts: Hurts, repository: Path
) -> None:
    if not (repository / f"build/site/{name}.html").exists():
        pytest.skip("the site is not built: make site")
    page = opened(f"site/{name}.html", width, theme)
    page.wait_for_load_state("load")
    assert hurts(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
