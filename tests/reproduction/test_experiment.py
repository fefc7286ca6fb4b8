import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipekit.reproduction.experiment import Experiment, load, load_all

Notebook = Callable[..., Path]


def write(folder: Path, text: str) -> Path:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return file


FILE = """
name: two sizes
cell_timeout_s: 60
notebooks:
  - notebook: a.ipynb
    name: small
    alone: true
    parameters: {steps: 1}
    full: {steps: 9}
  - notebook: a.ipynb
"""


@pytest.mark.parametrize(("scale", "steps"), [("quick", 1), ("full", 9)])
def test_scale_chooses_the_parameters(
    tmp_path: Path, notebook: Notebook, scale: str, steps: int
) -> None:
    path = notebook("a", "1 + 1")
    experiment = load(write(tmp_path, FILE), scale)
    assert (experiment.name, experiment.scale) == ("two sizes", scale)
    small, plain = experiment.jobs
    assert (small.name, small.notebook, small.parameters) == ("small", path, {"steps": steps})
    assert (plain.name, plain.notebook, plain.parameters) == ("a", path, {})
    assert (small.alone, plain.alone) == (True, False)
    assert (small.cells, small.cell_timeout_s) == (2, 60)
    assert small.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_cell_has_half_an_hour_unless_said_otherwise(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a")
    (job,) = load(write(tmp_path, "{name: x, notebooks: [{notebook: a.ipynb}]}")).jobs
    assert job.cell_timeout_s == 1800


def two_files(folder: Path, *names: str) -> Experiment:
    files = [folder / f"{name}.yaml" for name in ("one", "two")]
    for file, name in zip(files, names, strict=True):
        file.write_text(f"{{name: {file.stem}, notebooks: [{{notebook: a.ipynb, name: {name}}}]}}")
    return load_all(files, "full")


def test_several_files_are_one_experiment(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a")
    both = two_files(tmp_path, "x", "y")
    assert (both.name, both.scale) == ("one + two", "full")
    assert [job.name for job in both.jobs] == ["x", "y"]
    assert [job.name for job in both.only(["y"]).jobs] == ["y"]


def test_a_notebooks_name_in_two_files_is_refused_naming_both(
    tmp_path: Path, notebook: Notebook
) -> None:
    notebook("a")
    with pytest.raises(
        ValueError, match=r"one\.yaml and .*two\.yaml both have a notebook called x"
    ):
        two_files(tmp_path, "x", "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "is not valid YAML: while parsing"),
        ("just text", "must be a mapping with the keys name, notebooks, cell_timeout_s"),
        ("name: x", "lacks the key 'notebooks'"),
        ("{name: x, notebooks: []}", "names no notebook"),
        ("{name: 3, notebooks: []}", "'name' must be text, not 3"),
        ("{name: x, notebooks: [], colour: red}", "has the unknown key 'colour'"),
        ("{name: x, notebooks: [], cell_timeout_s: true}", "must be a whole number, not True"),
        ("{name: x, notebooks: [a.ipynb]}", "notebook 1 must be a mapping"),
        ("{name: x, notebooks: [{notebook: b.ipynb}]}", r"there is no notebook .*b\.ipynb"),
        ("{name: x, notebooks: [{notebook: experiment.yaml}]}", "cannot be read as a notebook"),
        (
            "{name: x, notebooks: [{notebook: a.ipynb}, {notebook: a.ipynb}]}",
            "two notebooks called a",
        ),
        ("{name: x, notebooks: [{notebook: a.ipynb, name: ../a}]}", "usable as a file name"),
        ("{name: x, notebooks: [{notebook: a.ipynb, quick: {stepz: 1}}]}", "must assign 'stepz'"),
        ("{name: x, notebooks: [{notebook: a.ipynb, quick: {scale: 1}}]}", "'scale' is set by the"),
        (
            "{name: x, notebooks: [{notebook: a.ipynb, quick: {steps: .inf}}]}",
            "must be JSON values",
        ),
        ("{name: x, notebooks: [{notebook: a.ipynb, full: 3}]}", "'full' must be a mapping, not 3"),
        ("{name: x, notebooks: [{notebook: a.ipynb, alone: 1}]}", "must be true or false, not 1"),
    ],
)
def test_mistakes_in_the_file_are_named_in_one_line(
    tmp_path: Path, notebook: Notebook, text: str, message: str
) -> None:
    notebook("a")
    with pytest.raises(ValueError, match=message) as error:
        load(write(tmp_path, text))
    assert "experiment.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("parameters", ["results_dir = 1", 'scale == "quick"', "# empty"])
def test_a_notebook_must_declare_what_the_runner_sets(
    tmp_path: Path, notebook: Notebook, parameters: str
) -> None:
    notebook("a", "scale = 1", parameters=parameters)
    with pytest.raises(ValueError, match="must assign 'scale' in its cell tagged 'parameters'"):
        load(write(tmp_path, "{name: x, notebooks: [{notebook: a.ipynb}]}"))


def test_missing_file_and_unknown_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no experiment file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="scale must be quick or full, not 'big'"):
        load(tmp_path / "none.yaml", "big")
