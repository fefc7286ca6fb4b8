"""The report as a reader opens it: Table 1 is found in twenty seconds, on any screen."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.jupyterlab import WIDTHS

FIRST_PX = 900
SEEN = """height => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), seen = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.height > 0 && box.top >= 0 && box.bottom <= height) seen.push(node.data.trim());
  }
  return seen.filter(Boolean).join(" ");
}"""
"""The text that is painted within so many pixels of the page's top."""
FOUND = re.compile(
    r"VGG16, 8 workers, Cluster-A .*?7\.04 / [\d.]+ ✘"  # network, workers, paper and ours
    r".*?the fitted bandwidth \(the printed bandwidth\) : PipeDream speedup"  # and the cause
)


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("report.html", WIDTHS["laptop"])


def test_a_reader_finds_vgg16_on_8_workers_on_the_first_screen(page: Page) -> None:
    assert FOUND.search(page.evaluate(SEEN, FIRST_PX))


def test_on_a_phone_a_row_is_read_from_top_to_bottom(page: Page, screenshots: Path) -> None:
    page.set_viewport_size({"width": WIDTHS["phone"], "height": FIRST_PX})
    assert FOUND.search(page.evaluate(SEEN, FIRST_PX))
    assert page.evaluate("document.documentElement.scrollWidth") == WIDTHS["phone"]
    page.screenshot(path=screenshots / "report_phone.png", scale="css")


def test_a_cell_leads_to_its_claim_and_the_filter_hides_rows_of_other_papers(page: Page) -> None:
    cell = page.locator(".printed-table a[href$=vgg16-8A-pp-speedup]")
    cell.click()
    expect(page.locator(":target")).to_contain_text("VGG16, 8 workers, Cluster-A")
    page.locator("select[name=paper]").select_option("gpipe")
    expect(cell).to_be_hidden()
    expect(page.locator(".printed-table:visible")).to_have_count(1)
    expect(page.locator(".score:visible")).to_have_count(1)
