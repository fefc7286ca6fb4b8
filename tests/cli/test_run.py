"""``pipekit run``, as a user types it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from tests.cli.conftest import Printed


@pytest.fixture(autouse=True)
def experiments(elsewhere: Path) -> None:
    """Write two experiments: good.yaml, and bad.yaml whose notebook fails unless it is mended."""
    for name, source in {"good": "print(scale)", "bad": "open('mended')"}.items():
        parameters = new_code_cell(
            "scale = ''\nresults_dir = ''", metadata={"tags": ["parameters"]}
        )
        nbformat.write(new_notebook(cells=[parameters, new_code_cell(source)]), f"{name}.ipynb")
        entry = {"name": name, "notebooks": [{"notebook": f"{name}.ipynb"}]}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(entry))


@pytest.mark.slow
def test_two_files_share_a_folder_and_are_continued(pipekit: Callable[[str], Any]) -> None:
    first = pipekit("run good.yaml bad.yaml --jobs 2 --scale full")
    assert first.exit_code == 1
    *_, good, bad, where = first.stdout.splitlines()
    assert good.startswith("good: done in ")
    assert "FileNotFoundError" in bad
    folder = Path(where.removeprefix("results: "))
    assert folder.parent == Path("results/runs").resolve()
    assert {"good.ipynb", "bad.ipynb"} < {path.name for path in folder.iterdir()}
    assert "full" in (folder / "good.ipynb").read_text()

    Path("mended").touch()
    last = pipekit("run good.yaml bad.yaml --scale full --resume --quiet")
    assert (last.exit_code, last.stderr) == (0, "")
    assert last.stdout.splitlines()[-1] == where


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("missing.yaml", "no experiment file is named missing.yaml"),
        ("good.yaml --only ugly", "good has no notebook 'ugly', only good"),
        ("good.yaml good.yaml", "good.yaml and good.yaml both have a notebook called good"),
        ("good.yaml bad.yaml --only ugly", "good + bad has no notebook 'ugly', only good, bad"),
        ("good.yaml --resume", "has no unfinished run of good (quick)"),
    ],
)
def test_wrong_input_gets_one_sentence(line: str, says: str, refused: Printed) -> None:
    assert says in refused(f"run {line}")
    assert not Path("results").exists()
