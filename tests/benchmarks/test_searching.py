"""The instances that searches are compared on are the same in every run, and their caps bind."""

import importlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest


@pytest.fixture
def searching(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repository / "experiments" / "benchmarks")
    return importlib.import_module("searching")


def test_an_instance_is_its_number_and_its_cap_binds(searching: Any) -> None:
    one, again, other = (searching.small(number) for number in (1, 1, 2))
    assert (one.profile, one.cap) == (again.profile, again.cap)
    assert one.profile != other.profile
    assert one.named
    assert all(max(each.peak_bytes) <= one.cap for each in one.named)
    times = [each.makespan_s for each in one.named]
    assert times == sorted(times)


def test_a_search_is_compared_with_the_best_named_method_and_the_proof(searching: Any) -> None:
    row = searching.proved(searching.small(0), 0.2, 10.0)
    assert row["is_proved"]
    assert row["found_s"] <= row["named_s"]
    assert row["above_optimum_percent"] >= 0


def test_a_comparison_is_taken_up_where_it_ended(searching: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept.csv"
    asked: list[int] = []

    def compare(number: int) -> dict[str, Any]:
        asked.append(number)
        return {"square": number**2}

    searching.rows("first", range(2), compare, kept)
    table = searching.rows("second", range(4), compare, kept)
    assert asked == [0, 1, 2, 3]
    assert table.equals(pd.DataFrame({"instance": range(4), "square": [0, 1, 4, 9]}))
