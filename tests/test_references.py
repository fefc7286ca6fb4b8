"""What a user names is found in a list, a module or a file, or the sentence says what is not there."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipekit.names import CLUSTERS, METHODS, MITIGATIONS, TRANSPORTS, Names
from pipekit.references import load, require_module


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "own_things.py"
    path.write_text("class Own:\n    made = 3\n")
    return path


def test_a_module_and_its_file_name_the_same_thing(file: Path) -> None:
    for place in ("own_things", "own_things.py", str(file)):
        require_module(f"{place}:Own")
        assert load(f"{place}:Own").__name__ == "Own"
        assert load(f"{place}:Own.made") == 3


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("own_things", "is not a package.module:name"),
        ("own_things:", "is not a package.module:name"),
        ("nowhere.py:Own", "there is no file nowhere.py"),
        ("nowhere:Own", "no module is named 'nowhere', installed or in"),
        ("own_things:Other", "own_things has no 'Other', only Own"),
    ],
)
def test_what_is_not_there_is_said(file: Path, reference: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(reference)


KINDS: dict[str, Names[Any]] = {
    each.kind: each for each in (METHODS, CLUSTERS, MITIGATIONS, TRANSPORTS)
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_named_is_there(kind: str) -> None:
    assert all(callable(place.load()) for place in KINDS[kind].values())


def test_a_wrong_name_is_refused_with_the_closest() -> None:
    with pytest.raises(ValueError, match=r"method must be one of gpipe, .*'gpip'; did you mean"):
        METHODS.require("gpip")


def test_names_are_listed_without_what_they_name() -> None:
    code = "import sys, pipekit.names as n; print(str(n.METHODS)[:12], 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "gpipe, flush False"
