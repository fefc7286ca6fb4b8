"""The folder of a batch that is continued: whose files go, and what is read of its record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipekit.ledger.batches.batch import run
from pipekit.ledger.batches.experiment import load
from pipekit.ledger.batches.runs import RECORD, BatchRun, unfinished
from tests.ledger.batches.test_batch import experiment

Notebook = Callable[..., Path]


@pytest.fixture
def file(tmp_path: Path, notebook: Notebook) -> Path:
    notebook("one", "1 + 1")
    return experiment(tmp_path, "one")


@pytest.fixture
def begun(tmp_path: Path, file: Path) -> Path:
    """The folder of a run of which nothing is done yet."""
    folder = tmp_path / "runs" / "2026-01-01T00-00-00.000000Z"
    folder.mkdir(parents=True)
    BatchRun(folder, load(file))
    return folder


@pytest.mark.parametrize("left", ["link", "file"])
def test_a_links_target_is_not_emptied(tmp_path: Path, file: Path, begun: Path, left: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("all of it")
    if left == "link":
        (begun / "one").symlink_to(mine)
    else:
        (begun / "one").write_text("all of it")
    with pytest.raises(ValueError, match=r"one is not a folder of this run.*move it away"):
        run(file, results=tmp_path / "runs", resume=True, quiet=True)
    assert (mine / "thesis.tex").read_text() == "all of it"
    assert not (begun / "one.ipynb").exists(), "something was run"


def test_links_among_a_notebook_s_files_go_and_what_they_lead_to_stays(
    tmp_path: Path, file: Path, begun: Path
) -> None:
    mine = tmp_path / "mine"
    (mine / "trainings").mkdir(parents=True)
    files = begun / "one"
    (files / "figures").mkdir(parents=True)
    (files / "figures" / "a.svg").touch()
    (files / "data").symlink_to(mine)
    (files / "gone").symlink_to(mine / "nowhere")
    (files / "trainings").symlink_to(mine / "trainings")  # kept elsewhere, as they may be
    batch = BatchRun(begun, load(file))
    batch.prepare(batch.todo[0])
    assert [path.name for path in files.iterdir()] == ["trainings"]
    assert (mine / "trainings").is_dir()


@pytest.mark.parametrize("text", ["", '{"experiment": "tri', "null", '{"notebooks": 3}'])
def test_a_damaged_record_is_called_so(tmp_path: Path, file: Path, begun: Path, text: str) -> None:
    (begun / RECORD).write_text(text)
    with pytest.raises(ValueError, match=r"no unfinished run.*no folder there has a whole record"):
        run(file, results=tmp_path / "runs", resume=True, quiet=True)


def test_the_newest_run_before_a_damaged_one_is_continued(file: Path, begun: Path) -> None:
    older, newer = (begun.with_name(f"{day}T00-00-00Z") for day in ("2025-12-31", "2026-01-02"))
    older.mkdir()
    BatchRun(older, load(file))
    newer.mkdir()
    (newer / RECORD).write_text("{")
    (newer.parent / "2026-01-03T00-00-00.000000Z").mkdir()
    assert unfinished(begun.parent, load(file)) == begun
