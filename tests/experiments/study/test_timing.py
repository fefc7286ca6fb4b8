"""Seconds that a worker's own thread computes."""

from itertools import count

import pytest
import torch
from torch import nn

from experiments.study.timing import own_activities, own_seconds
from pipekit.engine import Execution, Pipeline
from pipekit.plans import Recompute
from pipekit.schedules import gpipe


def one_stage(microbatches: int, recompute: Recompute) -> Pipeline:
    return Pipeline(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)),
        gpipe(1, microbatches),
        balance=[2],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
        execution=Execution(recompute=recompute),
    )


def test_every_pass_and_the_update_count_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks whenever it is looked at: each activity takes one tick."""
    ticks = count()
    monkeypatch.setattr("time.thread_time", lambda: float(next(ticks)))
    batch = torch.ones(4, 2), torch.ones(4, 1)
    pairs = {mode: (one_stage(4, mode), batch) for mode in ("never", "always")}
    seconds = own_seconds(pairs, rounds=2)
    assert seconds["never"].tolist() == [4 + 4 + 1] * 2
    assert seconds["always"].tolist() == [4 + 4 + 4 + 1] * 2
    (by_activity,) = own_activities(pairs, rounds=1)
    each = {"FORWARD": 4, "BACKWARD": 4, "UPDATE": 1}
    assert by_activity == {"never": each, "always": each | {"RECOMPUTE": 4}}
