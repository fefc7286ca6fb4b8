"""Steps as numbers."""

import pickle

import pytest

from pipekit.engine.transports.processes.packed_steps import pack, unpack
from pipekit.schedules import Schedule, flush, inference, interleaved, lower, pipedream, two_bw

SCHEDULES = [
    flush(3, 4, 2),
    interleaved(4, 4, 2, workers=2),
    pipedream([2, 1, 2], 5),
    two_bw(2, 4, 3),
    inference(3, 2),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_steps_come_back_as_they_were(schedule: Schedule) -> None:
    for steps in lower(schedule, [(0, schedule.stages - 1)]):
        back = unpack(pickle.loads(pickle.dumps(pack(steps))))
        assert back == steps
        assert [*map(type, back[0]), *map(type, back[0].task)] == [
            *map(type, steps[0]),
            *map(type, steps[0].task),
        ]


def test_a_worker_without_steps() -> None:
    assert unpack(pack(())) == ()
