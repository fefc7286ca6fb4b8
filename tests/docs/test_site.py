"""The site's own parts; that it builds without a warning is for ``make site``."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from pipekit.schedules.methods.by_name import METHODS


@pytest.fixture(scope="module")
def build(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", repository / "docs/site/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "docs/site"))  # as for a script
        spec.loader.exec_module(module)
    module.SOURCE = tmp_path_factory.mktemp("source")  # type: ignore[attr-defined]
    return module


def test_links_lead_to_pages_of_the_site(build: ModuleType, repository: Path) -> None:
    text = "[a](../CONTRIBUTING.md) [b](cost.md) [c](../pipekit/oracle/__init__.py) [d](#here) [e](https://x)"
    shown = build.linked(text, repository / "docs", "../")
    assert "[a](../contributing.md) [b](../cost.md)" in shown
    assert "[c](../source/pipekit/oracle/__init__.py.md) [d](#here) [e](https://x)" in shown
    assert (
        "One process, one thread"
        in (build.SOURCE / "source/pipekit/oracle/__init__.py.md").read_text()
    )


def test_a_method_page_has_picture_table_equation_and_claims(build: ModuleType) -> None:
    page = (build.SOURCE / f"methods/{build.method_page('2bw')}.md").read_text()
    assert (build.SOURCE / "methods/2bw.svg").exists()
    for shown in (
        "**A microbatch reads** W(t-1)",
        "worker 0 | F0",
        "def _previous",
        "of 111 claims",
    ):
        assert shown in page


def test_every_method_has_its_row_in_the_guide(build: ModuleType) -> None:
    assert [name for name in METHODS if build.row(name) is None] == []


def test_a_link_that_leads_nowhere_is_found(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#x"></a><img src="a.html"><a href="mailto:c">')
    assert list(build.broken_links(tmp_path)) == [("a.html", "b.html")]


def test_the_gallery_shows_the_first_figure_of_each_notebook_that_has_run(
    build: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "notebooks").mkdir()
    outputs = [{"data": {}}, {"data": {"image/svg+xml": ["<svg>", "</svg>"]}}]
    cells = [{"source": ["# Speed\n", "text"]}, {"source": "", "outputs": outputs}]
    (tmp_path / "notebooks/a.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "notebooks/b.ipynb").write_text(json.dumps({"cells": cells[:1]}))
    names = build.gallery.pages(tmp_path, tmp_path)
    assert names == ["a", "b"]
    assert (tmp_path / "gallery/a.svg").read_text() == "<svg></svg>"
    assert build.gallery.front(tmp_path, names) == "[![Speed](a.svg)](a.ipynb)\n\n*Speed*"


def test_the_slider_has_a_picture_and_a_sentence_for_each_place(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.play, "MICROBATCHES", range(4, 6))
    monkeypatch.setattr(build.play, "SHOWN", ("gpipe", "pipedream"))
    page = build.play.page(tmp_path)
    keys = ["gpipe-4", "gpipe-5", "pipedream-4", "pipedream-5"]
    assert sorted(path.stem for path in (tmp_path / "play").iterdir()) == keys
    assert all(f"'{key}': 'bubble" in page for key in keys)
