"""A plan goes into the pipeline as it is: layers, recomputation, links."""

from typing import Any

import pytest
import torch
from torch import nn

from pipekit import Plan
from pipekit.clusters import flat
from pipekit.plans import StagePlan
from pipekit.schedules import flush, gpipe
from tests.engine.examples import pipeline, trained, unlike

MODEL = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
TABLE = gpipe(2, 2).take(1)
BATCH = [(torch.ones(4, 4), torch.ones(4, 4))]


def test_a_plans_layers_and_recomputation_are_those_of_the_run() -> None:
    plan = Plan("by hand", (StagePlan(0, 3, recompute="always"), StagePlan(3, 4)))
    pipe = pipeline(MODEL, TABLE, plan)
    frame = pipe.train(BATCH).trace.frame
    assert pipe.balance == [3, 1]
    assert set(frame[frame["op"] == "RECOMPUTE"]["stage"]) == {0}


def test_what_is_asked_for_beside_the_plan_comes_first() -> None:
    plan = Plan.by_hand([3, 1], recompute="always")
    frame = pipeline(MODEL, TABLE, plan, recompute="never").train(BATCH).trace.frame
    assert "RECOMPUTE" not in set(frame["op"])


def test_recomputation_and_slow_links_change_no_weight() -> None:
    plain = pipeline(MODEL, TABLE, [2, 2])
    how: dict[str, Any] = {"recompute": ["always", "never"], "cluster": flat(2, 1e5)}
    other = pipeline(MODEL, TABLE, [2, 2], **how)
    assert unlike(trained(plain, BATCH), trained(other, BATCH)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"balance": Plan.by_hand([1, 1, 2])},
            "the plan has 1-1-1 workers a stage, each with one stage, and the schedule 1-1",
        ),
        (
            {"balance": Plan.by_hand([2, 2], replicas=[7, 1])},
            "the plan has 7-1 workers a stage.* schedule 1-1, on 2 workers: build",
        ),
        ({"recompute": ["never"]}, "recompute names 1 stages and the schedule has 2"),
        ({"cluster": flat(1, 1.0)}, "has 2 workers and cluster 'flat' only 1"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline(MODEL, TABLE, **options)


def test_a_norm_over_all_stages_is_not_slowed_down() -> None:
    pipe = pipeline(MODEL, flush(2, 2), clip_norm=1.0, cluster=flat(2, 1e6))
    assert len(pipe.train(BATCH).losses) == 1
