"""A plan: what it says of itself, and that it survives a file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.plans import Plan, StagePlan

counts = st.lists(st.integers(1, 9), min_size=1, max_size=6)
seconds = st.floats(0, 1e6)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    balance = draw(counts)
    return Plan(
        draw(st.text(max_size=8)),
        tuple(
            StagePlan(
                sum(balance[:i]),
                sum(balance[: i + 1]),
                draw(st.integers(1, 9)),
                draw(st.sampled_from(["never", "except_last", "always"])),
                draw(seconds),
                draw(seconds),
            )
            for i in range(len(balance))
        ),
        microbatch_rows=draw(st.integers(1, 64)),
        microbatches=draw(st.integers(1, 64)),
        in_flight=draw(st.integers(1, 16)),
        predicted_s=draw(seconds),
        why=draw(st.text(max_size=20)),
    )


@given(plan=plans())
def test_a_file_keeps_every_plan(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan


def test_it_prints_as_pipedreams_table_1_does_and_says_more() -> None:
    plan = Plan(
        "pipedream",
        (StagePlan(0, 31, 7, memory_bytes=2**31), StagePlan(31, 32)),
        in_flight=2,
        predicted_s=0.0123,
        why="the first stage's compute",
    )
    assert str(plan).splitlines() == [
        "7-1: layers 0-30 on 7 workers, layer 31 on 1 worker",
        "  pipedream; 12.3 ms a microbatch of 1 rows, 1 a batch, at most 2 in flight",
        "  at most 2 GiB on a worker",
        "  the first stage's compute",
    ]
    assert (plan.config, plan.balance, plan.workers, plan.layers) == ("7-1", [31, 1], 8, 32)


def test_a_plan_by_hand() -> None:
    plan = Plan.by_hand([2, 1], rows=8, replicas=[3, 1], recompute="always")
    assert [(s.first, s.stop, s.replicas, s.recompute) for s in plan.stages] == [
        (0, 2, 3, "always"),
        (2, 3, 1, "always"),
    ]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "first stage starts at layer 0"),
        ((StagePlan(1, 2),), "first stage starts at layer 0"),
        ((StagePlan(0, 2), StagePlan(3, 4)), "ends before layer 2 and the next starts at layer 3"),
        ((StagePlan(0, 0),), "at least one layer"),
        ((StagePlan(0, 1, 0),), "at least one layer and one worker"),
    ],
)
def test_stages_that_do_not_follow_one_another_are_refused(
    stages: tuple[StagePlan, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Plan("mine", stages)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"format": "pipekit plan 1"}', '{"format": "other"}']
)
def test_what_is_not_a_plan_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json is not a plan"):
        Plan.load(path)
