"""A file is the new one or the old one, and never half of either."""

import os
from pathlib import Path

import pytest

from pipekit.writing import write_whole


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
