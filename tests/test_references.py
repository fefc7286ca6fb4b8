"""What a user names is found in a module or a file, or the sentence says what is not there."""

from pathlib import Path

import pytest

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
