"""Bars of planners: for those who wait."""

from typing import Any

import pytest

from pipekit import Profile, plan, progress
from pipekit.clusters import flat

METHODS: dict[str, Any] = {"pipedream": {}, "parallel_pipelines": {"max_batch": 8}, "balance": {}}


@pytest.mark.parametrize("method", METHODS)
def test_a_bar_changes_no_plan_and_shows_only_when_it_takes_long(
    method: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, cluster = Profile.uniform(4, output_bytes=1.0), flat(2, 1e9)
    plain = plan(profile, cluster, method, **METHODS[method])
    assert plan(profile, cluster, method, progress=True, **METHODS[method]) == plain
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert plan(profile, cluster, method, progress=True, **METHODS[method]) == plain
    assert ("planning" in capfd.readouterr().err) == (method != "balance")
