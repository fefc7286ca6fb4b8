"""A plan: what it says of itself, and that it survives a file."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.plans import Plan, StagePlan
from tests.hostile import damaged_json, read_or_refuse

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
        "  pipedream; 12.3 ms a microbatch of 1 row, 1 a batch, at most 2 in flight",
        "  at most 2.147 GB on a worker",
        "  the first stage's compute",
    ]
    assert (plan.config, plan.balance, plan.workers, plan.layers) == ("7-1", [31, 1], 8, 32)


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


GOOD = {"format": "pipekit plan 1", **asdict(Plan.by_hand([2, 1], replicas=[2, 1]))}


@given(content=damaged_json(json.loads(json.dumps(GOOD))))
def test_whatever_stands_in_a_file_it_is_a_plan_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read_or_refuse(
        lambda path: str(Plan.load(path)), content, tmp_path_factory.getbasetemp() / "plan.json"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": [{"first": 0, "stop": "2"}]}, r"stages\[0\]\.stop: .*integer"),
        ({"stages": [{"first": 0, "stop": 2, "workers": 3}]}, r"stages\[0\]\.workers: Unexpected"),
        ({"stages": [{"first": 0, "stop": 10**9}]}, "a plan has no number .* above 1,000,000"),
        ({"predicted_s": -1.0}, "seconds and bytes of a plan are 0 or positive"),
        ({"colour": "red"}, "colour: Unexpected"),
    ],
)
def test_the_wrong_value_is_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ValueError, match=r"plan\.json is not a plan: " + message):
        Plan.load(path)
