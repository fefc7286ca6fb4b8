import pytest

from pipekit import schedules
from pipekit.papers.gpipe.timelines import bubble
from pipekit.papers.timelines import EQUAL_SLOTS
from pipekit.traces import Trace

GRID = ((1, 2), (4, 3))


def test_every_worker_idles_k_minus_1_slots_in_each_phase() -> None:
    assert bubble.idle(Trace.from_schedule(schedules.gpipe(4, 8).take(1))) == [3 * (1 + 2)] * 4
    assert bubble.idle(Trace.from_schedule(schedules.gpipe(4, 8).take(1), EQUAL_SLOTS)) == [6] * 4


def test_bubbles_drawn_and_simulated_are_those_of_the_formula() -> None:
    drawn, simulated = bubble.errors(GRID)
    assert drawn < 1e-12
    assert simulated < 1e-9
    equation, values, idle = bubble.findings(GRID)
    assert equation.value == [drawn, simulated]
    assert values.value[1] == pytest.approx(bubble.bubble(4, 4))
    assert idle.value is True


def test_the_figure_has_a_point_for_every_emulation() -> None:
    found = bubble.emulated(2, [1, 2], 0.005, repeats=1)
    figure, numbers = bubble.figure([1, 2], found)
    assert list(figure.data[-1].y) == [100 * each for each in found]
    assert (numbers["label"] == "emulated").sum() == 2
