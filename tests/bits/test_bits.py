"""The comparison of two commits to the bit sees a difference, and trains what it says."""

from pathlib import Path

import pytest
from tqdm import tqdm

from experiments.bits.__main__ import differences, trained
from experiments.bits.cases import BY_NAME, cases
from pipekit.schedules.methods.by_name import METHODS


def test_no_two_cases_have_one_name() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)


def test_every_named_method_is_trained() -> None:
    assert set(BY_NAME) == set(METHODS)


def test_a_bit_a_missing_place_and_a_failure_are_told() -> None:
    assert differences({"loss": "a0", "weight": "b"}, {"loss": "a0", "weight": "b"}) == []
    assert differences({"loss": "a0", "weight": "b"}, {"loss": "a1"}) == ["loss", "weight"]
    failed = {"error": "ValueError: no"}
    assert differences(failed, failed) == [
        "the older commit fails: ValueError: no",
        "this checkout fails: ValueError: no",
    ]


NAMES = ["balance auto, flush", "flush, 2 stages, threads", "flush, 2 stages, distributed"]


@pytest.mark.scripts
def test_outcomes_differ_with_the_seed_alone(repository: Path) -> None:
    """Balance and transport leave every bit as it is; another seed, and so dropout, does not."""
    with tqdm(disable=True) as bar:
        found = trained(repository, [*NAMES, "other seed, flush"], bar)
    for name in NAMES:
        assert differences(found[name], found[NAMES[0]]) == []
    assert "/0 train/losses/0" in differences(found["other seed, flush"], found[NAMES[0]])
