"""A file that is missing is named; a written one is the new or the old one, never half of either."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipekit.reading import read_bytes, read_json, read_table, read_text
from pipekit.writing import write_whole


@pytest.mark.parametrize("read", [read_text, read_bytes, read_table])
def test_a_missing_file_is_named(read: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^there is no file \S+/table.csv$"):
        read(tmp_path / "table.csv")


def test_a_missing_file_of_a_known_form_is_named_with_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"table.json, which should be a profile$"):
        read_json(tmp_path / "table.json", dict, "a profile")


def test_what_is_written_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    for text in ("one\n", "two: \N{SNOWMAN}\n"):
        write_whole(tmp_path / "file", text)
        assert (tmp_path / "file").read_text("utf-8") == text
    assert os.listdir(tmp_path) == ["file"]


def test_it_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "file", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
