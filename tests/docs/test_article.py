"""The article's formulas, as they stand in its text, agree with pipekit's simulator."""

import re
from itertools import product
from pathlib import Path

import pytest

from pipekit.explore.puzzles.levels import Puzzle
from pipekit.schedules import Op, Schedule, check, eager, flush, gpipe, model_parallel, zb_h1
from pipekit.traces import Trace
from tests.explore.puzzles.proof import played


@pytest.fixture(scope="module")
def formulas(repository: Path) -> list[str]:
    text = (repository / "docs/why_pipelines_idle.md").read_text(encoding="utf-8")
    return re.findall(r'data-formula="([^"]+)"', text)


def value(formula: str, **now: float) -> float:
    return float(eval(formula.replace("Math.min", "min"), {"min": min}, now))


def drawn(schedule: Schedule, b: float) -> Trace:
    cost = {Op.BACKWARD: b, Op.BACKWARD_INPUT: b / 2, Op.BACKWARD_WEIGHT: b / 2}
    return Trace.from_schedule(schedule, cost)


def long_run(schedule: Schedule, twice: Schedule, microbatches: int, **costs: object) -> float:
    """Return the slots of one more microbatch."""
    few, many = (
        played(Puzzle("", "", "", "", "", each, **costs)).makespan_s  # type: ignore[arg-type]
        for each in (schedule, twice)
    )
    return (many - few) / microbatches


def test_every_formula_is_checked_here(formulas: list[str]) -> None:
    assert set(formulas) == {
        "(p - 1) / p",
        "(m + p - 1) * (1 + b)",
        "(p - 1) / (m + p - 1)",
        "Math.min(p, m)",
        "m",
        "(p - 1) / (3 * m + p - 1)",
        "p - 1",
        "1 + b + 2 * l * (p - 1) / p",
        "1 + b",
        "(1 + b) / 2",
        "u * (1 + b)",
        "1 - 1 / u",
    }


@pytest.mark.parametrize("p", range(2, 7))
def test_bubbles_and_slots(p: int) -> None:
    for m, b in product(range(1, 9), (1, 2, 4)):
        bubble = value("(p - 1) / (m + p - 1)", p=p, m=m)
        for method in (gpipe, flush):
            trace = drawn(method(p, m).take(1), b)
            assert trace.bubble == pytest.approx(bubble)
            assert trace.makespan_s == value("(m + p - 1) * (1 + b)", p=p, m=m, b=b)
        assert drawn(model_parallel(p).take(m), b).bubble == pytest.approx(
            value("(p - 1) / p", p=p)
        )
        assert check(flush(p, m).take(1)).peak_in_flight[0] == value("Math.min(p, m)", p=p, m=m)
        if m >= p:
            zero = value("(p - 1) / (3 * m + p - 1)", p=p, m=m)
            assert drawn(zb_h1(p, m).take(1), 2).bubble == pytest.approx(zero)


@pytest.mark.parametrize(("p", "link"), [(2, 1), (2, 3), (4, 1), (4, 2), (6, 0.5)])
def test_links_slow_1f1b_down_and_eager_hides_them(p: int, link: float) -> None:
    m = 10 * p
    paid = long_run(flush(p, m).take(1), flush(p, 2 * m).take(1), m, link=link)
    formula = value("1 + b + 2 * l * (p - 1) / p", b=2, l=link, p=p)
    assert paid == pytest.approx(formula, abs=2 * link / m + 1e-6)
    hidden = long_run(eager(p, m).take(1), eager(p, 2 * m).take(1), m, link=link)
    limit = value("(1 + b) / 2", b=2)
    assert (hidden == pytest.approx(3, abs=1e-6)) == (link <= limit)


@pytest.mark.parametrize("u", [1.25, 1.5, 2])
def test_the_slowest_stage_sets_the_pace(u: float) -> None:
    slow = [1, u, 1, 1]
    paid = long_run(flush(4, 40).take(1), flush(4, 80).take(1), 40, workers=slow)
    assert paid == pytest.approx(value("u * (1 + b)", u=u, b=2))
    assert 1 - 3 / paid == pytest.approx(value("1 - 1 / u", u=u))
