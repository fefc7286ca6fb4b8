from collections.abc import Iterator
from typing import Any

import pytest

from pipekit.explore import search
from pipekit.explore.search import CAPS, see

SETTING: dict[str, Any] = {"workers": 2, "microbatches": 4}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(search, "SECONDS", 0.02)
    yield
    search._curve.cache_clear()


def test_more_memory_never_takes_longer_and_no_named_method_is_below_the_curve() -> None:
    frame = see(**SETTING).plots["time_against_memory"].data
    found, named = (frame[frame["kind"] == kind] for kind in ("found", "named"))
    assert len(found) == CAPS
    assert found["makespan_s"].is_monotonic_decreasing
    assert (found["peak_bytes"] <= found["cap_bytes"] * (1 + 1e-9)).all()
    for _, point in named.iterrows():
        under = found[found["cap_bytes"] >= point["peak_bytes"] * (1 - 1e-9)]
        assert under["makespan_s"].max() <= point["makespan_s"] * (1 + 1e-9)


def test_the_timelines_are_of_what_is_found_and_the_best_named_method() -> None:
    view = see(cap=CAPS // 2, **SETTING)
    found, named = view.timelines
    frame = view.plots["time_against_memory"].data
    cap = frame["cap_bytes"].dropna().iloc[CAPS // 2]
    fitting = frame[(frame["kind"] == "named") & (frame["peak_bytes"] <= cap)]
    assert named.trace.makespan_s == pytest.approx(fitting["makespan_s"].min())
    assert found.trace.makespan_s <= named.trace.makespan_s
    assert named.trace.name in view.text
