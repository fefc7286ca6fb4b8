"""The page's simulator agrees with pipekit's on named methods, random tables and all levels."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from pipekit.explore.browser.picture import explained, picture
from pipekit.explore.puzzles.data import NAMED, levels, rows, sandbox
from pipekit.explore.puzzles.levels import LEVELS, Puzzle
from pipekit.schedules import Schedule, check, slots
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH, TABLES
from pipekit.traces import Trace
from tests.explore.puzzles.conftest import Ask
from tests.explore.puzzles.proof import fewest_slots, played
from tests.schedules.strategies import training_methods

NAMES = [level.name for level in LEVELS]
CASES = [*zip(LEVELS, levels(), strict=True)]


def compare(schedule: Schedule, ask: Ask) -> None:
    """Require times, microbatches in flight and weight versions to be those of pipekit."""
    answer, placed = ask("times", {"rows": rows(schedule)}), slots(schedule)
    for worker, each in enumerate(placed):
        np.testing.assert_array_equal(each[:, 0], answer["starts"][worker])
        np.testing.assert_array_equal(each[:, 1], answer["ends"][worker])
    report = check(schedule)
    assert tuple(answer["inFlight"]) == report.peak_in_flight
    if schedule.stashing:  # a level's tasks name one version a microbatch
        assert tuple(answer["versions"]) == report.peak_versions
    assert answer["bound"] == max(each[:, 1].max(initial=0) for each in placed)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (6, 12)])
def test_named_methods_run_when_pipekit_says(stages: int, microbatches: int, ask: Ask) -> None:
    found = 0
    for name in NAMED:
        batches = microbatches if name in PER_MINIBATCH else 2
        try:
            schedule = TABLES[name](stages, microbatches).take(batches)
        except ValueError:  # not with these counts
            continue
        compare(schedule, ask)
        found += 1
    assert found > 15


@pytest.mark.parametrize("name", METHODS)
def test_pictures_have_pipekits_bars_and_gaps(name: str, ask: Ask) -> None:
    schedule = METHODS[name](4, 8).take(8 if name in PER_MINIBATCH else 2)
    trace, drawn = Trace.from_schedule(schedule), ask("drawn", {"rows": rows(schedule)})
    expected, reasons = picture(trace), explained(trace)
    for column in ("start", "end"):
        bars = np.frombuffer(expected["columns"][column], np.float32)
        np.testing.assert_array_equal(drawn["bars"][column], bars)
        gaps = np.frombuffer(reasons["columns"][column], np.float32)
        np.testing.assert_array_equal(drawn["gaps"][column], gaps)
    for column in ("lane", "stage", "microbatch", "version"):
        bars = np.frombuffer(expected["columns"][column], np.int32)
        np.testing.assert_array_equal(drawn["bars"][column], bars)
    for column in ("lane", "cause", "waits", "before"):
        gaps = np.frombuffer(reasons["columns"][column], np.int32)
        np.testing.assert_array_equal(drawn["gaps"][column], gaps, column)
    assert drawn["shares"] == reasons["shares"]


@given(training_methods)
def test_random_tables_run_when_pipekit_says(ask: Ask, schedule: Schedule) -> None:
    compare(schedule, ask)


@pytest.mark.parametrize(("level", "given"), CASES, ids=NAMES)
class TestLevel:
    def test_it_runs_when_the_simulator_says(
        self, level: Puzzle, given: dict[str, Any], ask: Ask
    ) -> None:
        answer, frame = ask("times", given), played(level).frame
        for worker, tasks in enumerate(level.best.workers):
            computed = [not task.op.stream for task in tasks]
            own = frame[frame["worker"] == worker]
            for each in "start", "end":
                times = np.array(answer[f"{each}s"][worker])[computed]
                np.testing.assert_allclose(times, own[f"{each}_s"], atol=1e-6)

    def test_two_bounds_agree(self, level: Puzzle, given: dict[str, Any], ask: Ask) -> None:
        assert ask("bound", given) == pytest.approx(fewest_slots(level))

    def test_its_goal_is_what_the_best_order_takes_and_keeps(
        self, level: Puzzle, given: dict[str, Any], ask: Ask
    ) -> None:
        goal, report = ask("goal", given), check(level.best)
        slots = played(level).makespan_s
        is_proven = fewest_slots(level) == slots
        assert goal["slots"] == pytest.approx(slots)
        assert goal["caps"] == ([*report.peak_in_flight] if level.capped else None)
        assert goal["versions"] == [*report.peak_versions]
        assert (goal["label"] == "proven optimal") == is_proven
        assert is_proven == (level.name not in {"A V under a memory cap", "Memory for two"})

    def test_hints_lead_to_the_best_order_and_no_bound_falls_on_the_way(
        self, level: Puzzle, given: dict[str, Any], ask: Ask
    ) -> None:
        game = ask("played", given)
        assert game["offered"], "each hint is a move that is allowed"
        slots = played(level).makespan_s
        assert game["slots"] == pytest.approx(slots)
        assert game["bounds"] == sorted(game["bounds"])
        assert game["bounds"][-1] == pytest.approx(slots)


def test_every_named_method_is_recognised_among_all(ask: Ask) -> None:
    count = 0
    for board in [*levels(), *sandbox()]:
        for method in board["named"]:
            says = ask("recognised", board, rows=method["rows"])
            assert says.startswith("You built ")
            assert method["name"] in says
            count += 1
    assert count > 100
