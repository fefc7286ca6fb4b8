"""The page for people who come from other tools: our half of it runs, and nothing in it is old."""

import re
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import pipelining

import pipekit as pk
from pipekit import schedules

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/from_other_tools.md").read_text()


@pytest.mark.long
def test_our_half_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    blocks = BLOCK.findall(page)
    assert len(blocks) == 5  # what they share, and one for each tool
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"block {number}", "exec"), namespace)


def test_every_name_of_ours_in_the_tables_exists(page: str) -> None:
    for name in re.findall(r"\bschedules\.(\w+)", page):
        assert callable(getattr(schedules, name))
    for name in re.findall(r"\bpk\.(\w+)", page):
        assert hasattr(pk, name)
    for name in re.findall(r"\bpipeline\.(\w+)\(", page):
        assert hasattr(pk.Pipeline, name)


def test_every_schedule_of_torchs_exists_and_none_is_missing(page: str) -> None:
    named = set(re.findall(r"\bSchedule[A-Z0-9]\w+", page))
    assert named == {name for name in pipelining.__all__ if name.startswith("Schedule")}


def test_every_table_has_two_columns(page: str) -> None:
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert {row.count("|") for row in rows} == {3}
