"""One function for all planners, and their bars for those who wait."""

from typing import Any

import pytest

from pipekit import progress
from pipekit.clusters import flat
from pipekit.planning import balanced, parallel_pipelines, pipedream, plan
from pipekit.profiling import Profile

PROFILE = Profile.uniform(4, output_bytes=1.0, parameter_bytes=1.0)
CLUSTER = flat(3, 10.0)
METHODS: dict[str, Any] = {"pipedream": {}, "parallel_pipelines": {"max_batch": 8}, "balance": {}}


def test_methods_are_planners_and_options_theirs() -> None:
    assert plan(PROFILE, CLUSTER) == pipedream(PROFILE, CLUSTER)
    assert plan(PROFILE, CLUSTER, cost="released") == pipedream(PROFILE, CLUSTER, cost="released")
    parallel = parallel_pipelines(PROFILE, CLUSTER, max_batch=9)
    assert plan(PROFILE, CLUSTER, "parallel_pipelines", max_batch=9) == parallel
    by_variance = balanced(PROFILE, CLUSTER, by="variance")
    assert plan(PROFILE, CLUSTER, "balance", by="variance") == by_variance


def test_impossible_calls() -> None:
    with pytest.raises(ValueError, match="method must be one of pipedream, parallel_pipelines"):
        plan(PROFILE, CLUSTER, "luck")
    with pytest.raises(ValueError, match="balance has no option 'cost', only stages, by"):
        plan(PROFILE, CLUSTER, "balance", cost="paper")
    with pytest.raises(ValueError, match="parallel_pipelines needs the option 'max_batch'"):
        plan(PROFILE, CLUSTER, "parallel_pipelines")
    with pytest.raises(ValueError, match="pipedream plans for one microbatch size"):
        plan({1: PROFILE}, CLUSTER)


@pytest.mark.parametrize("method", METHODS)
def test_a_bar_changes_no_plan_and_shows_only_when_it_takes_long(
    method: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plan(PROFILE, CLUSTER, method, **METHODS[method])
    assert plan(PROFILE, CLUSTER, method, progress=True, **METHODS[method]) == plain
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    assert plan(PROFILE, CLUSTER, method, progress=True, **METHODS[method]) == plain
    assert ("planning" in capfd.readouterr().err) == (method != "balance")
