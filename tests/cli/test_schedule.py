"""``pipekit schedule``: files of others, as a user types it."""

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[[str], str]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"worker 0 | F0 X0", "a.txt: line 1: cannot read 'X0'"),
        ("a.txt", b"\xff", "a.txt is not text"),
        ("a.csv", b"worker,op\n0,FORWARD\n", "a.csv: the CSV lacks the column 'stage'"),
        ("a.csv", b"\xff\n", "a.csv: the CSV cannot be read"),
        ("a.txt", b"worker 0 | F999999999", "F999999999 of stage 0 cannot be"),
        ("a.txt", b"worker 0 stage 999999999 | F0", "F0 of stage 999999999 cannot be"),
    ],
)
def test_a_broken_file_is_named_in_one_line(
    name: str, content: bytes, says: str, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert says in refused(f"schedule {tmp_path / name}")


def test_too_little_memory_is_said_in_one_line(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pipekit.traces.Trace.from_schedule", exhausted)
    assert "needs more memory than there is" in refused("schedule gpipe")
