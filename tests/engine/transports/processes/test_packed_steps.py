"""Steps as numbers."""

import pickle

import pytest

from pipekit.engine.transports.processes.packed_steps import pack, unpack
from pipekit.schedules import (
    Schedule,
    Steps,
    flush,
    inference,
    interleaved,
    lower,
    pipedream,
    two_bw,
)

SCHEDULES = [
    flush(3, 4),
    flush(3, 4).take(2),
    interleaved(4, 4, workers=2),
    pipedream([2, 1, 2]),
    pipedream([2, 1, 2]).take(5),
    two_bw(2, 4),
    inference(3),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_steps_come_back_as_they_were(schedule: Schedule) -> None:
    for steps in lower(schedule, [(0, schedule.stages - 1)]):
        back = unpack(pickle.loads(pickle.dumps(pack(steps))))
        assert back == steps
        first, same = back.distinct[0], steps.distinct[0]
        assert [*map(type, first), *map(type, first.task)] == [
            *map(type, same),
            *map(type, same.task),
        ]


def test_a_worker_without_steps() -> None:
    assert unpack(pack(Steps(()))) == Steps(())
