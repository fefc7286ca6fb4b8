"""Questions to traces drawn in slots, and seconds that a worker's own thread computes."""

from itertools import count

import pytest
import torch
from torch import nn

from experiments.study.traces import EQUAL_SLOTS, busy_s, memory_of, own_activities, own_seconds
from experiments.torchgpipe.cells import as_drawn
from pipekit import schedules, simulate
from pipekit.engine import Execution, Pipeline
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import gpipe
from pipekit.traces import Trace

"""worker 0 | F0 F1 .  B0 -  .  B1 -^ ...: a batch takes 9 slots, the last backward of its 2
microbatches ends with it."""


def test_backwards_as_drawn_are_the_forwards_reversed_and_can_be_executed() -> None:
    picture = """
    worker 0 | F0 F1 .  .  B1 B0^ F2 F3 .  .  B3 B2^
    worker 1 | .  F0 F1 B1 B0^ .  .  F2 F3 B3 B2^
    """
    table = as_drawn(2, 2).repeat().take(2)
    assert table.workers == schedules.parse(picture).workers
    schedules.check(table)


def test_time_within_a_window_is_counted_and_memory_must_have_been_followed() -> None:
    trace = Trace.from_schedule(as_drawn(2, 2), EQUAL_SLOTS)
    first = trace.frame[trace.frame["worker"] == 0]
    assert busy_s(first, 1.5, 4.5) == 1.0
    with pytest.raises(ValueError, match="memory=True"):
        memory_of(trace)
    assert memory_of(simulate(as_drawn(2, 2), Profile.uniform(2))).peak_bytes == (0, 0)


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
