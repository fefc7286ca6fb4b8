"""Methods by name: workers= says to each how many share its stages."""

from typing import Any

import pytest

from pipekit.names import TABLES as ENTRIES
from pipekit.schedules import ScheduleError, check, interleaved, zb_v
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH, TABLES


@pytest.mark.parametrize("name", TABLES)
def test_every_method_is_had_on_so_many_workers(name: str) -> None:
    schedule = TABLES[name](workers=4, microbatches=8)
    assert schedule.worker_count == 4
    assert schedule.stages == 4 * ENTRIES[name].stages_a_worker
    assert (
        schedule == TABLES[name](schedule.stages, 8) == TABLES[name](schedule.stages, 8, workers=4)
    )
    check(schedule)
    if name not in PER_MINIBATCH and ENTRIES[name].replicas == "pipelines":
        both = TABLES[name]([2] * schedule.stages, 8)
        assert both == TABLES[name]([2] * schedule.stages, 8, workers=both.worker_count)


def test_more_stages_a_worker_are_those_of_the_function() -> None:
    assert METHODS["interleaved"](12, 8, workers=4) == interleaved(12, 8, workers=4)
    assert METHODS["zb-v"](workers=3, microbatches=4) == zb_v(6, 4)


@pytest.mark.parametrize(
    ("name", "counts", "says"),
    [
        ("flush", {"stages": 8, "workers": 4}, "puts 8 stages on 8 workers, not 4: leave out"),
        ("zb-v", {"stages": 12, "workers": 4}, "puts 12 stages on 6 workers, not 4"),
        ("pipedream", {"stages": [2, 1], "workers": 2}, "puts 2 stages on 3 workers, not 2"),
        ("gis", {"stages": 6, "workers": 4}, "use a multiple of 4 from 8"),
        ("gis", {"stages": 5}, "use an even number of stages, not 5, or say how many workers"),
        ("flush", {"workers": 0}, "workers must be a whole number of at least 1"),
    ],
)
def test_what_a_method_has_not_is_refused(name: str, counts: Any, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        METHODS[name](microbatches=4, **counts)
