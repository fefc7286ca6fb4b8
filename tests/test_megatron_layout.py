"""Megatron-LM's layouts: written so that Megatron-LM reads the same stages, or refused.

The judge is the rule of its source, said in a few lines: drop commas, write out ``x*n`` by a regular
expression, cut at the bars.
"""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipekit import Plan


def written_out(layout: str) -> list[str]:
    found = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout.replace(",", ""))
    return found.split("|")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 1))
def test_megatron_lm_reads_the_stages_that_were_written(
    balance: list[int], predictors: int
) -> None:
    assume(sum(balance) >= 2 + predictors)
    stages = written_out(Plan.by_hand(balance).to_megatron_layout(predictors))
    assert [*map(len, stages)] == balance
    assert re.fullmatch("Et*" + "m" * predictors + "L", "".join(stages))


def test_write() -> None:
    assert Plan.by_hand([4, 4, 4]).to_megatron_layout() == "E,t*3|t*4|t*3,L"
    assert Plan.by_hand([3, 2, 2]).to_megatron_layout(predictors=1) == "E,t*2|t*2|m,L"


def test_plans_that_megatron_lm_cannot_have() -> None:
    with pytest.raises(ValueError, match="data parallelism beside it"):
        Plan.by_hand([2, 2], replicas=[2, 1]).to_megatron_layout()
    with pytest.raises(ValueError, match="MTP layers are in stages 1 and 2"):
        Plan.by_hand([2, 2, 2]).to_megatron_layout(predictors=2)
    with pytest.raises(ValueError, match="1 layers are too few for an embedding, 0 MTP layers"):
        Plan.by_hand([1]).to_megatron_layout()
