"""Unequal stages and other policies: the tables, and the findings read off them."""

import pandas as pd
import pytest

from pipekit.papers.pipedream.timelines import policies


def test_unequal_pipelines_idle_as_the_closed_form_says() -> None:
    table = policies.unequal_stages(5, seed=0)
    assert table["error"].max() < 1e-9
    found = policies.idle_finding(table.assign(error=0.25))
    assert found.value == 0.25
    assert f"of {len(table)}: a stage" in found.note
    assert "within" in policies.idle_figure(table).layout.title.text


def test_forward_first_updates_late_and_admits_all() -> None:
    assert policies.forward_first_finding(0.02).value is True
    names = {schedule.name for schedule in policies.policies()}
    assert set(policies.events(policies.policies())["policy"]) == names


def test_backward_first_is_counted_worse_and_better() -> None:
    busy = pd.DataFrame(
        {"backward first": [0.5, 0.9, 0.7], "1F1B": [0.6, 0.8, 0.7], "unlimited": 0.9}
    ).assign(pipelines="3")
    found = policies.backward_first_finding(busy)
    assert found.value == pytest.approx([0.7, 0.7])
    assert "worse than 1F1B in 1, better in 1" in found.note
    assert "in 1 of 3 unequal" in policies.backward_first_figure(busy).layout.title.text
    assert len(policies.backward_first(2, 40, seed=0)) == 2
