import random

import pytest

from experiments.pipedream_2bw.planner import checks, depths, findings
from experiments.pipedream_2bw.planner.profiling_modes import Errors


def test_answers_that_are_right_pass_and_wrong_ones_do_not() -> None:
    draw = random.Random(0)
    problems = [checks.random_problem(draw) for _ in range(4)]
    answers = [checks.answer(problem) for problem in problems]
    assert [found.value for found in findings.answer_findings(problems, answers)] == [True] * 6
    smaller = [problem._replace(max_batch=1) for problem in problems]
    wrong = findings.answer_findings(smaller, [each._replace(error=0.1) for each in answers])
    values = {each.claim: each.value for each in wrong}
    assert values["2bw-planner-exhaustive"] is False
    assert values["2bw-planner-batch-cap"] is False
    assert values["2bw-equal-replication"] is True


def test_pairs_are_counted() -> None:
    found = findings.space_finding()
    assert found.value == pytest.approx(8 / 16)  # 1x1 to 1x4, 2x1, 2x2, 3x1, 4x1 of 4 by 4
    assert "for 51 layers" in found.note


def test_times_and_errors_are_those_measured() -> None:
    deep = findings.deep_problem(3)
    ours, ratio = findings.time_findings(deep, 0.5, 2.0)
    assert (ours.value, ratio.value) == (0.5, 4)
    assert ours.note.startswith("6 layers")
    errors = Errors([0.3, 0.1, 0.0], [0.1, 0.4, 0.2], 120)
    modes, cost = findings.profiling_findings(errors, 20)
    assert (modes.value, cost.value) == ([0.1, 0.2], 2)
    assert modes.repeats == ([0.3, 0.1], [0.1, 0.4], [0.0, 0.2])
    assert "each by the fastest of 6 steps" in modes.note
    assert findings.placement_finding({"within": 2.0, "across": 3.0}).value == 1.5


def test_only_depths_with_equal_blocks_are_compared() -> None:
    model = depths.MODELS[0]
    assert set(model.choices.index) <= set(depths.DEPTHS)
    assert model.best == model.choices["throughput"].idxmax()
    assert len(model.plan.stages) >= 1
    assert [each.claim for each in depths.MODELS] == [
        None,
        "2bw-sec52-planner-8deep",
        "2bw-sec52-planner-16deep",
    ]


def test_a_depth_is_tried_with_less_memory_than_the_device_has() -> None:
    model = depths.PaperModel("1.3B", 1, 64, 8, "2bw-sec52-planner-8deep")
    found = model.finding()
    (cause,) = found.causes
    table = model.asked.sweep()
    fits = table[table["memory_bytes"] <= 14 * 2**30]  # of 16
    assert len(fits) < len(table), "the experiment leaves something out"
    own = fits.loc[fits["depth"] == 8, "throughput"].max()
    assert cause.value == pytest.approx(fits["throughput"].max() / own)
    assert found.value == model.ratio
