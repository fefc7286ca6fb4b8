"""The two lists of dependencies, pip's and conda's, are one list."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

CONDA_NAMES = {"torch": "pytorch"}


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
