import json
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.sign import NotebookNotary

from pipekit.reproduction.batch import run

Notebook = Callable[..., Path]

WORKS = """
import json, os, pathlib, sys
seen = dict(scale=scale, steps=steps, python=sys.executable, cwd=os.getcwd())
pathlib.Path(results_dir, "seen.json").write_text(json.dumps(seen))
"""


def experiment(folder: Path, *names: str, **keys: object) -> Path:
    entries = [{"notebook": f"{name}.ipynb", "full": {"steps": 9}} for name in names]
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump({"name": "trial", "notebooks": entries, **keys}))
    return file


@pytest.mark.slow
def test_one_failure_does_not_stop_the_others_and_all_is_recorded(
    tmp_path: Path, notebook: Notebook, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook("bad", "1 / 0", "never = 'reached'")
    notebook("good", WORKS)
    batch = run(experiment(tmp_path, "bad", "good"), scale="full", results=tmp_path / "runs")
    bad, good = batch.notebooks
    assert batch.failed == (bad,)
    assert bad.error == "ZeroDivisionError: division by zero"
    assert good.error is None
    assert batch.folder.parent == tmp_path / "runs"

    # The good notebook got its parameters, this Python and the folder it lies in.
    assert json.loads((batch.folder / "good" / "seen.json").read_text()) == {
        "scale": "full",
        "steps": 9,
        "python": sys.executable,
        "cwd": str(tmp_path),
    }

    # Executed copies, of the failed notebook too; both signed.
    for result in batch.notebooks:
        copy = nbformat.read(result.notebook, as_version=4)
        assert result.notebook == batch.folder / f"{result.name}.ipynb"
        assert NotebookNotary().check_signature(copy)
    assert "ZeroDivisionError" in (batch.folder / "bad.ipynb").read_text()

    record = json.loads((batch.folder / "provenance.json").read_text())
    assert (record["label"], record["experiment"], record["scale"]) == ("measured", "trial", "full")
    assert record["parameters"] == {"bad": {"steps": 9}, "good": {"steps": 9}}
    assert [n["error"] for n in record["notebooks"]] == [bad.error, None]
    assert str(tmp_path) not in json.dumps(record), "a record must not depend on where it was made"

    printed, progress = capfd.readouterr()
    *_, failure, success, where = printed.splitlines()
    assert failure == "bad: ZeroDivisionError: division by zero"
    assert success.startswith("good: done in ")
    assert where == f"results: {batch.folder}"
    assert "100%" in progress


@pytest.mark.slow
def test_a_cell_that_never_ends_is_stopped(
    tmp_path: Path, notebook: Notebook, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook("endless", "import time\nwhile True: time.sleep(0.1)")
    file = experiment(tmp_path, "endless", cell_timeout_s=1)
    (result,) = run(file, results=tmp_path / "runs", quiet=True).notebooks
    assert result.error is not None
    assert result.error.startswith("CellTimeoutError")
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_strange_kernel_of_the_user_is_not_used(
    tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text('{"argv": ["false"], "display_name": "elsewhere", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    notebook("good", WORKS)
    result = run(experiment(tmp_path, "good"), results=tmp_path / "runs", quiet=True)
    assert not result.failed


@pytest.mark.slow
def test_only_the_named_notebooks_run(tmp_path: Path, notebook: Notebook) -> None:
    notebook("bad", "1 / 0")
    notebook("good", WORKS)
    file = experiment(tmp_path, "bad", "good")
    result = run(file, only=["good"], results=tmp_path / "runs", quiet=True)
    assert [n.name for n in result.notebooks] == ["good"]
    assert not result.failed
    assert not (result.folder / "bad.ipynb").exists()


def test_an_unknown_name_is_refused_before_anything_runs(
    tmp_path: Path, notebook: Notebook
) -> None:
    notebook("good", WORKS)
    with pytest.raises(ValueError, match="trial has no notebook 'godo', only good"):
        run(experiment(tmp_path, "good"), only=["godo"], results=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
