"""What the browser is shown: notebooks to run, and pages that need no kernel."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import mistune
import nbformat
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from pipekit.explore import why_page
from pipekit.explore.browser.standalone import page as timelines
from pipekit.explore.puzzles.page import html
from pipekit.explore.why_slow import EXAMPLE, explanation
from pipekit.ledger.claims import outcomes
from pipekit.ledger.report import write
from pipekit.schedules import flush, gpipe
from pipekit.traces import Trace
from tests.course.test_kit import loaded

SMALL = {"stage_counts": "2", "microbatches": 2, "batch_rows": 20, "epochs": 1}
"""The quickstart's parameters here; with them go fewer images."""
IMAGES = "mnist(rows=5000, test_rows=1000)", "mnist(rows=600, test_rows=100)"
MANY = """
from pipekit.explore.browser.widgets import TimelineCanvas
from pipekit.schedules import pipedream
from pipekit.traces import Trace

canvas = TimelineCanvas()
canvas.show(Trace.from_schedule(pipedream(8).take(2090)))
canvas
"""
HTML = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>page</title>"
    "<meta name=viewport content='width=device-width'><style>:root {color-scheme: light dark; background: Canvas}</style>"
)
"""The site's theme gives a page the like."""


def write_notebooks(folder: Path, repository: Path) -> None:
    """Copy the explorers' notebooks and a small quickstart, and add one with many bars."""
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


def write_pages(folder: Path, repository: Path) -> None:
    """Write the pages that need no kernel, and link the site if it is built."""
    course = loaded(repository / "docs/site/course.py")
    traces = [Trace.from_schedule(method(4, 4).take(1)) for method in (gpipe, flush)]
    text = (repository / "docs/why_pipelines_idle.md").read_text(encoding="utf-8")
    article = mistune.create_markdown(escape=False, plugins=["table"])(text)
    head = f"{HTML}<style>{course.styles()}</style>"
    for name, page in {
        "puzzles": html(),
        "timeline": timelines("GPipe and 1F1B", traces),
        "why": why_page.html(explanation(EXAMPLE)),
        "article": f"{head}{article}<script>{course.timelines()}</script>",
    }.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    write(outcomes(repository / "results/reference/papers"), folder)
    if (built := repository / "build/site").is_dir():
        (folder / "site").symlink_to(built)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; return its address."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
