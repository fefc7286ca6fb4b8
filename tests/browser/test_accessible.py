"""No page hinders readers with a screen reader, a keyboard or weak eyes."""

from pathlib import Path

import pytest

from tests.browser.conftest import Hurts, Open
from tests.browser.jupyterlab import SCREENS

MADE = (
    *(f"{name}.html" for name in ("article", "timeline", "report")),
    *(f"puzzles.html#level={n}" for n in (1, 7, 15, 18, 19)),
)
MAIN = (
    *("index", "start", "cost", "papers", "methods/index", "methods/zb-v"),
    *("course/index", "gallery/index", "api/pipekit"),
)
OF_THE_SITE = tuple(f"site/{name}.html" for name in MAIN)


@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", [*MADE, *OF_THE_SITE])
def test_pages_without_a_kernel(
    name: str, width: int, theme: str, opened: Open, hurts: Hurts, repository: Path
) -> None:
    if name in OF_THE_SITE and not (repository / "build" / name).exists():
        pytest.skip("the site is not built: make site")
    page = opened(name, width, theme)
    page.wait_for_load_state("load")
    page.keyboard.press("h")  # in a puzzle, a hint
    assert hurts(page) == []
    if name != "report.html":  # whose tables are as wide as the papers'
        assert page.evaluate("document.documentElement.scrollWidth") == width
