"""Unequal stages and other policies: the tables, and the findings read off them."""

import pandas as pd
import pytest

from pipekit.papers.pipedream.timelines import policies


def test_unequal_pipelines_idle_as_the_closed_form_says() -> None:
    table = policies.unequal_stages(2, seed=1)
    assert table["error"].max() < 0.005
    found = policies.idle_finding(table.assign(error=0.25))
    assert found.value == 0.25
    assert f"the worst of {len(table)} random pipelines" in found.note
    assert "within" in policies.idle_figure(table).layout.title.text


def test_forward_first_updates_late_and_admits_all() -> None:
    assert policies.forward_first_finding(0.02).value is True
    names = {schedule.name for schedule in policies.policies()}
    assert set(policies.events(policies.policies())["policy"]) == names


def test_backward_first_is_judged_at_the_cap_that_says_least_for_1f1b() -> None:
    lead = pd.DataFrame({"backward first": [0.5, 0.7], "1F1B": [0.9, 0.7], "cap": "low"})
    none = pd.DataFrame({"backward first": [0.9, 0.7], "1F1B": [0.8, 0.7], "cap": "high"})
    found = policies.backward_first_finding(pd.concat([lead, none]))
    assert found.value == pytest.approx([0.8, 0.75])
    assert "low: 0.6000 and 0.8000, worse than 1F1B in 1, better in 0" in found.note
    assert "high: 0.8000 and 0.7500, worse than 1F1B in 0, better in 1" in found.note
    title = policies.backward_first_figure(pd.concat([lead, none])).layout.title.text
    assert "in 1 of 4 unequal" in title


def test_both_policies_have_the_same_cap() -> None:
    busy = policies.backward_first(2, 50, seed=0)
    assert list(busy["cap"]) == ["at most 4 in flight", "at most 8 in flight"] * 2
    assert busy[["backward first", "1F1B"]].to_numpy().max() <= 1
