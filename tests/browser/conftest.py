"""JupyterLab in Chromium, once for all tests of this folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

if TYPE_CHECKING:
    from tests.browser.jupyterlab import Lab

CHROMIUM = shutil.which("chromium")
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the browser where there is none."""
    for item in items:
        if CHROMIUM is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip("chromium is not installed: make chromium"))


@pytest.fixture(scope="session")
def lab(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Lab]":
    """JupyterLab with copies of the notebooks; the quickstart runs while others are looked at."""
    from tests.browser.jupyterlab import jupyterlab  # here, where playwright is known to be there

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
    assert CHROMIUM is not None
    with jupyterlab(folder, CHROMIUM, tmp_path_factory.mktemp("jupyterlab")) as lab:
        lab.run("quickstart.ipynb", own_kernel=True)
        yield lab


@pytest.fixture(autouse=True)
def _no_error_and_no_request_elsewhere(lab: "Lab") -> Iterator[None]:
    yield
    assert lab.errors == []
    assert lab.hosts == {"127.0.0.1"}


@pytest.fixture
def screenshots(repository: Path) -> Path:
    folder = repository / "results" / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
