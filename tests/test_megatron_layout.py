"""Megatron-LM's layouts: read as Megatron-LM reads them, and refused where it would refuse them.

The judge is the rule of its source, said in a few lines: drop commas, write out ``(...)*n`` and then
``x*n`` by regular expressions, cut at the bars.
"""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipekit import Plan, schedules
from pipekit.megatron_layout import read_layout


def written_out(layout: str) -> list[str]:
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    return layout.split("|")


# deepseek's is that of Megatron-LM's documentation: 61 blocks and an MTP layer on 16 x 2 stages
@pytest.mark.parametrize(
    ("layout", "balance"),
    [
        ("E|L", [1, 1]),
        ("Et*3|(tt|)*2,L", [4, 2, 2, 1]),
        ("E,t*3|t*4|t*4|t*3,L", [4, 4, 4, 4]),
        ("Et*3|(tt|)*29,m|L", [4, *[2] * 29, 1, 1]),
        ("E(t)*2,(t|t)*2|t*0mL", [4, 2, 1, 2]),
    ],
)
def test_read(layout: str, balance: list[int]) -> None:
    plan = Plan.from_megatron_layout(layout)
    assert plan.balance == balance
    assert read_layout(layout) == written_out(layout)


def test_ranks_have_stages_in_a_loop() -> None:
    """Megatron-LM's rank r has the stages r, r + PP, ...: those of interleaved 1F1B."""
    layout = "Et|t*2|t*2|t*2|t*2|t*2|t|L"
    plan = Plan.from_megatron_layout(layout, workers=4)
    homes = schedules.interleaved(len(plan.stages), 4, workers=4).take(1).stage_workers
    assert homes == tuple((stage % 4,) for stage in range(8))
    with pytest.raises(ValueError, match="8 stages cannot be dealt out to 3 workers"):
        Plan.from_megatron_layout(layout, workers=3)


parts = st.sampled_from(
    ["t", "t*2", "|", ",", "(t|)*2", "(tt)*3", "|t", "(|t,t*2)*2", "m", "E", "L", "t*0"]
)


@given(st.lists(parts, max_size=6))
def test_it_is_read_as_megatron_lm_reads_it(middle: list[str]) -> None:
    layout = "E" + "".join(middle) + "L"
    stages = written_out(layout)
    letters = "".join(stages)
    taken = re.fullmatch("Et*m*L", letters) and all(stages)
    if sum("m" in stage for stage in stages) > 1:
        taken = None
    if not taken:
        with pytest.raises(ValueError, match=r"position|MTP"):
            read_layout(layout)
        return
    assert read_layout(layout) == stages


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 1))
def test_what_is_written_is_read_back(balance: list[int], predictors: int) -> None:
    assume(sum(balance) >= 2 + predictors)
    plan = Plan.by_hand(balance)
    layout = plan.to_megatron_layout(predictors)
    assert written_out(layout) == read_layout(layout)
    assert Plan.from_megatron_layout(layout).balance == balance
    assert "".join(written_out(layout)).count("m") == predictors


def test_write() -> None:
    assert Plan.by_hand([4, 4, 4]).to_megatron_layout() == "E,t*3|t*4|t*3,L"
    assert Plan.by_hand([3, 2, 2]).to_megatron_layout(predictors=1) == "E,t*2|t*2|m,L"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Ettx|L", r"position 4 of 'Ettx\|L': 'x' is not a layer \(E, t, m, L\)"),
        ("Et t|L", "position 3 of .*: ' ' is not a layer"),
        ("Et*|L", r"position 3 of .*: '\*' is not a layer .* n being a number"),
        ("Et*2*3|L", r"position 5 of .*: '\*' is not a layer"),
        ("Et*1,2|L", "position 6 of .*: '2' is not a layer"),
        ("E(tt|L", r"position 2 of .*: '\(' is not a layer"),
        ("E(tt)|L", r"position 2 of .* nor \(\.\.\.\)\*n of these"),
        ("E((t|)*2)*3L", "position 2 of .*, and begins neither"),
        ("Et||tL", "position 4 of .*: stage 1 has no layer, which Megatron-LM would take"),
        ("Et|tL|", "position 6 of .*: stage 2 has no layer"),
        ("tE|L", "position 1 of .*: t cannot be layer 0 of 3: the first one is E"),
        ("Et|t", "position 4 of .*: t cannot be layer 2 of 3"),
        ("Et|L|L", "position 4 of .*: L cannot be layer 2 of 4"),
        ("Et|m|t|L", "position 6 of .*: t comes before m"),
        ("Et|m|m|L", "MTP layers are in stages 1 and 2"),
        ("Et*99999999999|L", "position 15 of .*: more than 1,000,000 layers"),
        ("|", r"'\|' has no layer"),
        ("", "'' has no layer, such as E"),
    ],
)
def test_refusals_say_where(layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.from_megatron_layout(layout)


def test_mtp_layers_are_in_the_last_stage_of_their_rank() -> None:
    assert Plan.from_megatron_layout("Et|t|m|L", workers=2).balance == [2, 1, 1, 1]
    with pytest.raises(ValueError, match="MTP layers are in stage 1, which is not the last"):
        Plan.from_megatron_layout("Et|m|L", workers=1)


def test_plans_that_megatron_lm_cannot_have() -> None:
    with pytest.raises(ValueError, match="data parallelism beside it"):
        Plan.by_hand([2, 2], replicas=[2, 1]).to_megatron_layout()
    with pytest.raises(ValueError, match="MTP layers are in stages 1 and 2"):
        Plan.by_hand([2, 2, 2]).to_megatron_layout(predictors=2)
    with pytest.raises(ValueError, match="1 layers are too few for an embedding, 0 MTP layers"):
        Plan.by_hand([1]).to_megatron_layout()
