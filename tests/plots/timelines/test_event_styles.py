"""How events look."""

import pytest

from pipekit import schedules
from pipekit.plots import style
from pipekit.plots.timelines.event_styles import event_styles
from pipekit.schedules import Schedule
from pipekit.traces import Trace


def names(schedule: Schedule) -> tuple[list[str], list[tuple[str, int, str]]]:
    """The styles' names, and of each event: op, stage, colour."""
    trace = Trace.from_schedule(schedule)
    found, kinds = event_styles(trace)
    frame = trace.frame
    events = zip(frame["op"], frame["stage"], (found[kind].color for kind in kinds), strict=True)
    return [look.name for look in found], list(events)


def test_with_one_stage_a_worker_it_is_the_op() -> None:
    found, events = names(schedules.flush(3, 2).take(1))
    assert found == ["forward", "backward", "update"]
    assert all(color == style.OPS[op].color for op, _, color in events)


def test_later_stages_of_a_worker_are_lighter_and_updates_come_last() -> None:
    found, events = names(schedules.interleaved(6, 2, workers=2).take(1))
    again = [f"{op}, later stage" for op in ("forward", "backward")]
    assert found == ["forward", "backward", *again, *again, "update"]
    for op, stage, color in events:
        part = 0 if op == "UPDATE" else [0, 0.325, 0.65][stage // 2]
        assert color == style.whiter(style.OPS[op].color, part)


@pytest.mark.parametrize(("part", "color"), [(0, "#56B4E9"), (0.5, "#AADAF4"), (1, "#FFFFFF")])
def test_whiter(part: float, color: str) -> None:
    assert style.whiter("#56B4E9", part) == color
