import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from nbformat.v4 import new_code_cell, new_notebook

from pipekit.ledger.batches.experiment import Experiment, load
from pipekit.ledger.batches.ranges import read
from tests.hostile import damaged_json, damaged_text, read_or_refuse

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
    experiment = load(write(tmp_path, FILE), scale=scale)
    assert (experiment.name, experiment.scale) == ("two sizes", scale)
    small, plain = experiment.jobs
    assert (small.name, small.notebook, small.parameters) == ("small", path, {"steps": steps})
    assert (plain.name, plain.notebook, plain.parameters) == ("a", path, {})
    assert (small.alone, plain.alone) == (True, False)
    assert (small.cells, small.cell_timeout_s) == (2, 60)
    assert small.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


GRID = """
name: grid
notebooks:
  - notebook: a.ipynb
    full: {scale_of: 2}
    grid:
      steps: [1, 0.5]
      method: {ours: "2bw x", theirs: "pipedream:4"}
"""
GRID_PARAMETERS = "scale = results_dir = steps = method = scale_of = 0"


def test_a_grid_is_a_run_for_each_combination(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a", parameters=GRID_PARAMETERS)
    experiment = load(write(tmp_path, GRID), scale="full")
    assert {job.name: (job.parameters, job.point) for job in experiment.jobs} == {
        f"a-{number}-{label}": (
            {"scale_of": 2, "steps": steps, "method": method},
            (("steps", number), ("method", label)),
        )
        for steps, number in ((1, "1"), (0.5, "0p5"))
        for label, method in (("ours", "2bw x"), ("theirs", "pipedream:4"))
    }
    assert experiment.only(["a"]) == experiment
    assert [job.name for job in experiment.only(["a-1-ours"]).jobs] == ["a-1-ours"]


def test_what_a_scale_sets_is_not_varied_at_it(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a", parameters=GRID_PARAMETERS)
    file = write(tmp_path, GRID.replace("    grid:", "    quick: {steps: 7}\n    grid:"))
    assert [(job.name, job.parameters["steps"]) for job in load(file).jobs] == [
        ("a-ours", 7),
        ("a-theirs", 7),
    ]
    assert len(load(file, scale="full").jobs) == 4


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        ("{steps: []}", "the grid of 'steps' must be a list of values, not []"),
        ("{steps: 3}", "the grid of 'steps' must be a list of values, not 3"),
        ("{steps: [1, 1]}", "two notebooks called a-1: name one, or a grid's values"),
        ("{steps: [1], scale_of: [2]}", "'scale_of' is both in the grid and beside it"),
        ("{stepps: [1]}", "must assign 'stepps'"),
        ("{scale: [1]}", "'scale' is set by the runner"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(
    tmp_path: Path, notebook: Notebook, grid: str, why: str
) -> None:
    notebook("a", parameters=GRID_PARAMETERS)
    entry = f"{{notebook: a.ipynb, parameters: {{scale_of: 1}}, grid: {grid}}}"
    text = f"{{name: x, notebooks: [{entry}]}}"
    with pytest.raises(ValueError, match=re.escape(why)):
        load(write(tmp_path, text))


def two_files(folder: Path, *names: str) -> Experiment:
    files = [folder / f"{name}.yaml" for name in ("one", "two")]
    for file, name in zip(files, names, strict=True):
        file.write_text(f"{{name: {file.stem}, notebooks: [{{notebook: a.ipynb, name: {name}}}]}}")
    return load(*files, scale="full")


def test_several_files_are_one_experiment(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a")
    both = two_files(tmp_path, "x", "y")
    assert (both.name, both.scale) == ("one + two", "full")
    assert [job.name for job in both.jobs] == ["x", "y"]
    assert [job.name for job in both.only(["y"]).jobs] == ["y"]


def test_a_name_in_two_files_is_refused_naming_both(tmp_path: Path, notebook: Notebook) -> None:
    notebook("a")
    with pytest.raises(
        ValueError, match=r"one\.yaml and .*two\.yaml both have a notebook called x"
    ):
        two_files(tmp_path, "x", "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "is not an experiment, see docs/papers.md: while parsing"),
        ("just text", "should be an object"),
        ("name: x", "notebooks: Field required"),
        ("{name: x, notebooks: [{notebook: a}], colour: red}", "colour: Extra inputs are not"),
        ("{name: x, notebooks: [a.ipynb]}", r"notebooks\[0\]: Input should be an object"),
        ("{name: x, notebooks: [{notebook: b.ipynb}]}", r"no notebook is named .*b\.ipynb"),
        ("{name: x, notebooks: [{notebook: experiment.yaml}]}", "cannot be read as a notebook"),
        (
            "{name: x, notebooks: [{notebook: a.ipynb}, {notebook: a.ipynb}]}",
            "two notebooks called a",
        ),
        *[
            (f"{{name: x, notebooks: [{{notebook: a.ipynb, name: '{name}'}}]}}", "as a file name")
            for name in ("../a", "..", "/a", "", ".lock", "provenance.json", "a" * 101)
        ],
        (
            "{name: x, notebooks: [{notebook: a.ipynb}], cell_timeout_s: -1}",
            "cell_timeout_s: Input should be g",
        ),
        ("{name: x, notebooks: !!python/name:os.system }", "is not an experiment"),
        ("{name: x, notebooks: [{notebook: a.ipynb, quick: {stepz: 1}}]}", "must assign 'stepz'"),
        ("{name: x, notebooks: [{notebook: a.ipynb, quick: {scale: 1}}]}", "'scale' is set by the"),
        ("{name: x, notebooks: [{notebook: a.ipynb, quick: {steps: .inf}}]}", "JSON compliant"),
        ("{name: x, notebooks: [{notebook: a.ipynb, full: 3}]}", r"\[0\].full: Input should be"),
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


def test_aliases_which_can_stand_for_more_than_memory_holds_are_refused(
    tmp_path: Path, notebook: Notebook
) -> None:
    """Nine lists of nine lists of ... nine texts: a billion, in 400 characters."""
    notebook("a")
    bomb = "".join(f"    a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
    start = "name: x\nnotebooks:\n- notebook: a.ipynb\n  parameters:\n    a0: &a0 lol\n"
    with pytest.raises(ValueError, match=r"write out the values of \*aliases"):
        load(write(tmp_path, start + bomb))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged_text(FILE))
def test_whatever_stands_in_a_file_it_is_an_experiment_or_refused(
    content: bytes, tmp_path: Path, notebook: Notebook
) -> None:
    notebook("a")
    read_or_refuse(load, content, tmp_path / "experiment.yaml")


CELL = new_code_cell("scale = results_dir = 1", metadata={"tags": ["parameters"]})
NOTEBOOK: dict[str, Any] = json.loads(json.dumps(new_notebook(cells=[CELL])))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged_json(NOTEBOOK))
def test_whatever_stands_in_a_notebook_it_is_one_or_refused(content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path, "{name: x, notebooks: [{notebook: a.ipynb}]}")
    read_or_refuse(lambda _: load(file), content, tmp_path / "a.ipynb")


@pytest.mark.parametrize("source", ["(" * 5000, "x = " + "-" * 20_000 + "1", "x\0", "%magic"])
def test_a_parameters_cell_that_is_no_python(source: str, tmp_path: Path) -> None:
    cell = dict(NOTEBOOK["cells"][0], source=source)
    (tmp_path / "a.ipynb").write_text(json.dumps(NOTEBOOK | {"cells": [cell]}))
    with pytest.raises(ValueError, match=r"a\.ipynb cannot be read as a notebook"):
        load(write(tmp_path, "{name: x, notebooks: [{notebook: a.ipynb}]}"))


def test_a_parameter_out_of_the_range_in_its_comment_is_refused_before_anything_runs(
    tmp_path: Path, notebook: Notebook
) -> None:
    declared = 'scale = "quick"\nresults_dir = "."\nrows: int = 8  # of a batch [4, 16]\n'
    notebook("a", parameters=declared)
    file = tmp_path / "experiment.yaml"
    file.write_text("{name: trial, notebooks: [{notebook: a.ipynb, grid: {rows: [4, 17]}}]}")
    with pytest.raises(ValueError, match="notebook 1: the parameter rows is 17, outside its range"):
        load(file)


def test_missing_file_and_unknown_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no experiment file is named"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="scale must be quick or full, not 'big'"):
        load(tmp_path / "none.yaml", scale="big")


RANGES = """
epochs: int = 10  # passes over the images [1, 1000]
share: float = 0.5  # of the time [0.1, 1]
rates: str = "0.1"  # learning rates [0.001, 1.0]
counts: str = "2"  # of workers [2, 8]
scale: str = "quick"  # how much [quick | full]
hidden: int = 32  # size [16 | 32]
pass_ms: float = 10.0  # of a forward [1, 1000]
shown: bool = True  # whether [a figure is shown]
words: str = ""  # neither [1, many] nor [1]
plain = 3
odd: int | None = None  # [1, 2]
"""


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("epochs", [1, 1000], [0, 1001]),
        ("share", [0.1, 1, 1.0], [0.09, -1.0, float("nan"), float("inf")]),
        ("rates", ["0.1 1", "0.001"], ["", " ", "0", "0.1 2", "nan", "two"]),
        ("counts", ["2", "2 8"], ["2 9", "2.5"]),
        ("scale", ["quick", "full"], ["", "slow", "quick slow"]),
        ("hidden", [16, 32], [24, 0]),
        ("pass_ms", [1, 1.5, 1000], [0.5, 1000.5, float("nan")]),
        ("words", ["", "anything"], []),
    ],
)
def test_a_range_is_what_it_says(name: str, inside: list[object], outside: list[object]) -> None:
    parameter = read(RANGES)[name]
    for value in inside:
        parameter.check(value)
    for value in outside:
        with pytest.raises(ValueError, match=f"the parameter {name} is .*, outside its range: "):
            parameter.check(value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", 2.0, "the parameter epochs must be a whole number, not 2.0"),
        ("epochs", True, "the parameter epochs must be a whole number, not True"),
        ("share", "1", "the parameter share must be a number, not '1'"),
        ("shown", 1, "the parameter shown must be True or False, not 1"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^") as refused:
        read(RANGES)[name].check(value)
    assert str(refused.value) == message
