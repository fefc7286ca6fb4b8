"""Wheel and sdist work away from the checkout; pip's and conda's dependencies are one list."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from shutil import copy
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import pipekit
from pipekit.extras import EXTRA
from pipekit.ledger.ledger import load

CONDA_NAMES = {"torch": "pytorch"}
DISTRIBUTIONS = {"sklearn": "scikit-learn", "IPython": "ipykernel"}
"""Where a library is imported by another name than it is installed by, or comes with another."""

BLOCKED = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""

WITHOUT_TORCH = """
import pathlib

import pipekit as pk
import pipekit.ledger.report
from pipekit import plots, schedules
from pipekit.profiling import LayerProfile

print(pathlib.Path(pk.__file__).parent)
schedule = schedules.two_bw(2, 4).take(2)
assert schedules.parse(str(schedule)) == schedule
schedules.check(schedule)
profile = pk.Profile(tuple(LayerProfile(f"layer {n}", 1.0, 2.0, saved_bytes=1) for n in range(4)))
plan = pk.plan(profile, pk.clusters.flat(2, 1e9), replicate=False)
trace = pk.simulate(schedule, profile, plan)
plots.save(plots.timeline(trace), "timeline", trace.frame)
trace.to_perfetto("trace.json")
best = pk.search(profile, plan, microbatches=4, seconds=0.1)
assert len(pk.claims.outcomes(".")) > 400
for use in (lambda: pk.Pipeline, lambda: pk.simulate(schedule, profile, mitigation="spectrain")):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""

COMMANDS = """
import typer.testing
from pipekit.cli import app

def said(*arguments):
    result = typer.testing.CliRunner().invoke(app, arguments)
    return result.exit_code, result.output.splitlines()

print(said("schedule", "gpipe")[0])
print(said("report", ".")[0])
for command in (["train"], ["demo"], ["run", "e.yaml"], ["train", "--model", "nosuch"]):
    print(*said(*command)[1][-1:])
"""


def run(code: str, folder: Path, path: Path) -> list[str]:
    """Run a program in a folder, without the libraries of the extras; return its lines."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def build(what: str, source: Path, into: Path) -> Path:
    """Build a wheel or an sdist of a source tree."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", what, "-d", str(into)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (made,) = into.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", repository, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the wheel installs, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_schedules_plans_simulations_and_plots_need_no_torch(
    installed: Path, tmp_path: Path
) -> None:
    where, *errors = run(WITHOUT_TORCH, tmp_path, installed)
    assert where == str(installed / "pipekit")
    assert {path.name for path in tmp_path.iterdir()} == {
        "timeline.svg",
        "timeline.csv",
        "trace.json",
    }
    assert len(errors) == 2
    assert all("not installed: pip install 'pipekit[torch]'" in error for error in errors)


@pytest.mark.long
def test_commands_say_what_to_install_and_refuse_wrong_names_before_they_load_torch(
    installed: Path, tmp_path: Path, repository: Path
) -> None:
    copy(repository / "results/reference/papers/claims.jsonl", tmp_path)
    drawn, reported, train, demo, batch, wrong = run(COMMANDS, tmp_path, installed)
    assert (drawn, reported) == ("0", "0")
    assert train.endswith("pip install 'pipekit[torch]'")
    assert demo.endswith("pip install 'pipekit[torch]'")
    assert batch.endswith("pip install 'pipekit[notebooks]'")
    assert "model must be one of convnet" in wrong


def test_type_checkers_find_each_public_name_where_it_is_found_when_it_runs() -> None:
    (block,) = (x for x in ast.parse(inspect.getsource(pipekit)).body if isinstance(x, ast.If))
    imported: dict[str, Any] = {}
    for statement in block.body:
        exec(ast.unparse(statement), {}, imported)
    assert sorted(imported) == pipekit.__all__
    assert [name for name in imported if imported[name] is not getattr(pipekit, name)] == []


@pytest.mark.parametrize("module", [pipekit, pipekit.staleness], ids=["pipekit", "staleness"])
def test_notebooks_complete_public_names_that_nobody_has_used_yet(module: ModuleType) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.long
def test_the_sdist_makes_the_same_wheel(wheel: Path, repository: Path, tmp_path: Path) -> None:
    sdist = build("sdist", repository, tmp_path)
    subprocess.run(["tar", "xf", sdist, "-C", tmp_path], check=True)
    again = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_each_extra_has_the_libraries_that_are_said_to_be_in_it(repository: Path) -> None:
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for library, extra in EXTRA.items():
        names = {canonicalize_name(Requirement(line).name) for line in extras[extra]}
        assert canonicalize_name(DISTRIBUTIONS.get(library, library)) in names


def test_github_is_told_what_exists(repository: Path) -> None:
    made = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for path in (repository / ".github").rglob("*.yml"):
        text = path.read_text()
        assert yaml.safe_load(text)["name"]
        assert set(re.findall(r"run: make ([a-z]+)", text)) <= made
    cited = yaml.safe_load((repository / "CITATION.cff").read_text())
    assert cited["version"] == metadata.version("pipekit")
    assert len(cited["references"]) == len({claim.paper for claim in load().values()})


def parsed(requirements: list[str]) -> dict[str, SpecifierSet]:
    """Map each requirement's name, as conda-forge spells it, to the versions it allows."""
    found = [Requirement(line) for line in requirements]
    names = [canonicalize_name(requirement.name) for requirement in found]
    assert len(set(names)) == len(names), "a dependency is listed twice"
    conda_names = [CONDA_NAMES.get(name, name) for name in names]
    return dict(zip(conda_names, [requirement.specifier for requirement in found], strict=True))


def expanded(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """Return an extra's requirements, with those of the extras that it names."""
    found: list[str] = []
    for line in extras[extra]:
        requirement = Requirement(line)
        if requirement.name == "pipekit":
            found += [other for name in requirement.extras for other in expanded(name, extras)]
        else:
            found.append(line)
    return found


def test_environment_yml_lists_what_pyproject_lists(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    environment = yaml.safe_load((repository / "environment.yml").read_text())
    *conda, last = environment["dependencies"]

    expected = parsed(project["dependencies"] + expanded("dev", project["optional-dependencies"]))
    expected |= {"python": SpecifierSet(project["requires-python"]), "pip": SpecifierSet()}
    assert parsed(conda) == expected
    assert last == {"pip": ["-e ."]}
    assert environment["name"] == project["name"]
    assert environment["channels"] == ["conda-forge"]
