"""The site's own parts; that it builds without a warning is for ``make site``."""

import json
import re
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

import pipekit
from pipekit.schedules.methods.by_name import METHODS, TABLES
from tests.course.test_kit import loaded


@pytest.fixture(scope="module")
def build(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "docs/site"))  # as for a script
        module = loaded(repository / "docs/site/build.py")
    module.SOURCE = tmp_path_factory.mktemp("source")  # type: ignore[attr-defined]
    return module


def test_links_lead_to_pages_of_the_site(build: ModuleType, repository: Path) -> None:
    text = (
        "[a](../CONTRIBUTING.md) [b](cost.md#how) [c](../pipekit/oracle/train.py) [d](#here) "
        "[e](https://x) [f](/about.md) [g](course/README.md)"
    )
    shown = build.linked(text, repository / "docs")
    assert "[a](/contributing.md) [b](/cost.md#how)" in shown
    assert (
        "[c](/source/pipekit/oracle/train.py.md) [d](#here) [e](https://x) [f](/about.md)" in shown
    )
    assert "[g](/course/readme.md)" in shown
    shown = (build.SOURCE / "source/pipekit/oracle/train.py.md").read_text()
    assert (repository / "pipekit/oracle/train.py").read_text() in shown


def test_the_reference_has_a_page_for_each_public_module(build: ModuleType) -> None:
    for name in pipekit._MODULES.values():
        build.api_module(name)
        assert f"automodule:: pipekit.{name}" in (build.SOURCE / f"api/{name}.md").read_text()


@pytest.fixture(scope="module")
def guide(repository: Path) -> str:
    return (repository / "docs/methods.md").read_text()


@pytest.fixture(scope="module")
def costs(build: ModuleType) -> pd.DataFrame:
    table: pd.DataFrame = build.costs.table()
    return table


def test_a_method_page_has_picture_use_and_table(
    build: ModuleType, guide: str, tmp_path: Path
) -> None:
    page = build.methods.page("2bw", guide, tmp_path)
    assert (tmp_path / "2bw.svg").exists()
    for shown in (
        "![PipeDream-2BW",
        "| PipeDream-2BW | W(t-1) | 2 |",
        "When speed matters",
        "worker 0 | F0",
    ):
        assert shown in page


def test_every_method_has_its_row_and_its_use_in_the_guide(build: ModuleType, guide: str) -> None:
    assert [name for name in TABLES if len(build.methods.guided(name, guide)) != 2] == []
    assert [name for name in TABLES if len(build.methods.when(name, guide)) < 30] == []


def test_methods_with_chunks_and_transfers_have_a_page(
    build: ModuleType, guide: str, tmp_path: Path
) -> None:
    for name in TABLES.keys() - METHODS.keys():
        page = build.methods.page(name, guide, tmp_path)
        assert (tmp_path / f"{name}.svg").exists()
        assert "| what is new |" in page
    assert "F0/O0" in build.methods.page("pipe-offload", guide, tmp_path)


def test_costs_are_the_papers_closed_forms(build: ModuleType, costs: pd.DataFrame) -> None:
    table = build.costs
    p, m, n = table.WORKERS, table.MICROBATCHES, table.BATCHES
    flushed = 100 * (p - 1) / (m + p - 1)  # GPipe, section 3.2
    for name in ("gpipe", "flush"):
        assert costs.loc[name, table.START] == pytest.approx(flushed)
        assert costs.loc[name, table.SENT] == 2 * (p - 1)
    assert costs.loc["model-parallel", table.START] == pytest.approx(100 * (p - 1) / p)
    chunked = 100 * (p - 1) / 2 / (m + (p - 1) / 2)  # two chunks a microbatch
    for name, kept in (("seq1f1b", (p + 1) / 2), ("terapipe", m)):
        assert costs.loc[name, table.START] == pytest.approx(chunked)
        assert costs.loc[name, table.KEPT] == kept
    for name, plain in (("bpipe", "flush"), ("pipe-offload", "gis"), ("sharded-bfs", "looped-bfs")):
        same = [table.START, table.IDLE, table.SENT, table.EVERY]
        assert costs.loc[name, same].equals(costs.loc[plain, same])
    assert costs.loc["bpipe", table.KEPT] == (p + 2) / 2  # section 3 of BPipe
    endless = 100 * (p - 1) / (m * n + p - 1)  # no flush: the pipeline fills and drains once
    assert costs.loc["pipedream", table.START] == pytest.approx(endless)
    assert costs.loc["pipedream", table.IDLE] == pytest.approx(0)
    assert costs.loc["interleaved", table.SENT] == 2 * (2 * p - 1)
    kept = costs[table.KEPT]
    assert [kept[name] for name in ("gpipe", "flush", "pipedream")] == [m, p, p]
    behind = costs[table.OLD]
    assert [behind[name] for name in ("pipedream", "2bw", "flush")] == [p - 1, 1, 0]
    weights = costs[table.WEIGHTS]
    assert [weights[name] for name in ("pipedream", "2bw", "dualpipe")] == [p, 2, 2]


def test_the_course_is_the_puzzles_page(build: ModuleType, tmp_path: Path) -> None:
    page = build.course.pages("", tmp_path)["course/index"]
    for name in re.findall(r"_static/(course/[a-z.]+)", page):
        assert (tmp_path / name).stat().st_size > 1000
    assert 'id="puzzles"' in page


def test_a_link_that_leads_nowhere_is_found(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#x"></a><img src="a.html"><a href="mailto:c">')
    assert list(build.broken_links(tmp_path)) == [("a.html", "b.html")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two notebooks, one of which a run has executed."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "experiments").mkdir()
    run = tmp_path / "results/runs/2026-01-01"
    run.mkdir(parents=True)
    parameters = 'scale: str = "quick"\nresults_dir: str = "x"'
    cells = [
        cell("markdown", "# Speed\ntext"),
        cell("code", parameters, "parameters", "hide-input"),
        cell("code", f'results_dir = "{run}/fast"', "injected-parameters"),
        cell("code", "draw()", svg="<svg></svg>"),
    ]
    notebook: dict[str, object] = {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (run / "fast.ipynb").write_text(json.dumps(notebook | {"cells": cells}))
    for name in "ab":
        bare = notebook | {"cells": cells[:2]}
        (tmp_path / f"notebooks/{name}.ipynb").write_text(json.dumps(bare))
    (tmp_path / "experiments/e.yaml").write_text(
        "name: e\nnotebooks: [{notebook: ../notebooks/a.ipynb, name: fast}]"
    )
    return tmp_path


def cell(kind: str, source: str, *tags: str, svg: str = "") -> dict[str, object]:
    made: dict[str, object] = {
        "id": "x",
        "cell_type": kind,
        "source": source,
        "metadata": {"tags": tags},
    }
    if kind == "code":
        data = {"image/svg+xml": svg}
        output = {"output_type": "display_data", "data": data, "metadata": {}}
        made |= {"outputs": [output] if svg else [], "execution_count": None}
    return made


def test_the_gallery_shows_the_first_figure_of_each_notebook_that_has_run(
    build: ModuleType, checkout: Path
) -> None:
    names = build.gallery.pages(checkout, checkout, build.linked)
    assert names == ["a", "b"]
    assert (checkout / "gallery/a.svg").read_text() == "<svg></svg>"
    front = build.gallery.front(checkout, names)
    assert "[![Speed](a.svg) Speed](a.ipynb)" in front
    assert "[Speed](b.ipynb) (not run here)" in front


def test_hidden_code_is_folded_away_and_names_no_folder_of_the_machine(
    build: ModuleType, checkout: Path
) -> None:
    build.gallery.pages(checkout, checkout, build.linked)
    cells = json.loads((checkout / "gallery/a.ipynb").read_text())["cells"]
    _, parameters, injected, drawn = cells
    assert injected["source"].startswith('results_dir = "results/runs')
    assert all(each["metadata"]["tags"] == ["hide-input"] for each in (parameters, injected))
    assert drawn["outputs"]
