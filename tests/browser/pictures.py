"""Take the README's pictures of the explorer and the report: ``python -m tests.browser.pictures``."""

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

from pipekit.explore.browser.standalone import page as timelines
from pipekit.explore.timeline import see
from pipekit.ledger import claims
from pipekit.ledger.report import write
from tests.browser.jupyterlab import chromium

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
FRAMES, FRAME_MS, WIDTH_PX = 30, 333, 880


def main() -> None:
    """Write ``explorer.gif``, ten seconds of two methods that play, and ``report.png``."""
    with chromium("/usr/bin/chromium") as browser, tempfile.TemporaryDirectory() as folder:
        explorer(browser, Path(folder))
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.goto(write(claims.outcomes(ROOT / "results/reference/papers"), Path(folder)).as_uri())
        taken(page, colours=256).save(PICTURES / "report.png")


def explorer(browser: Browser, folder: Path) -> None:
    """Film a page on which PipeDream-Flush plays above GPipe."""
    view = see("flush", "gpipe", microbatches=8, batches=2)
    traces = [each.trace for each in view.timelines]
    (folder / "play.html").write_text(timelines("PipeDream-Flush and GPipe", traces))
    page = browser.new_page(viewport={"width": WIDTH_PX, "height": 560})
    page.goto((folder / "play.html").as_uri())
    page.locator("canvas[data-explained=true]").nth(1).wait_for()
    canvas = page.locator(".pipekit-timeline > canvas").first
    canvas.focus()
    frames = []
    for _ in range(FRAMES):
        canvas.press(".")
        frames.append(taken(page, colours=64))
    first, *rest = frames
    first.save(
        PICTURES / "explorer.gif", save_all=True, append_images=rest, duration=FRAME_MS, loop=0
    )


def taken(page: Page, colours: int) -> Image.Image:
    """Return a picture of what a page shows, in so many colours."""
    return Image.open(io.BytesIO(page.screenshot())).quantize(colours)


if __name__ == "__main__":
    main()
