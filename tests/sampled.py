"""Cases of which a sample runs by ``make long``, and all by a target of their own."""

import random
from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet


def sampled(cases: Sequence[object], count: int, seed: int = 0) -> list[ParameterSet]:
    """Return the cases, ``count`` of them drawn with the seed as long and the others as whole."""
    drawn = set(random.Random(seed).sample(range(len(cases)), count))
    marks = (pytest.mark.long if n in drawn else pytest.mark.whole for n in range(len(cases)))
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]
