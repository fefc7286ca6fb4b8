"""The rule of a loss scale: what a user may say, and what it means."""

from typing import Any

import pytest
import torch

from pipekit import LossScale


def test_dynamic_is_pytorchs_rule() -> None:
    theirs = torch.amp.GradScaler("cpu")
    assert LossScale.of("dynamic") == LossScale(
        theirs.get_scale(),
        theirs.get_growth_factor(),
        theirs.get_backoff_factor(),
        theirs.get_growth_interval(),
    )


def test_a_number_stays_as_it_is() -> None:
    assert LossScale.of(1024) == LossScale(1024.0, growth=1.0, backoff=1.0)


def test_a_rule_or_none_is_itself() -> None:
    rule = LossScale(8.0, interval=3)
    assert LossScale.of(rule) is rule
    assert LossScale.of(None) is None


@pytest.mark.parametrize("value", ["static", 0, -1.0, float("inf"), float("nan"), torch.ones(())])
def test_what_is_no_scale(value: Any) -> None:
    with pytest.raises(ValueError, match=r"loss[_ ]scale"):
        LossScale.of(value)


@pytest.mark.parametrize(
    "numbers", [{"growth": 0.5}, {"backoff": 0.0}, {"backoff": 2.0}, {"interval": 0}]
)
def test_what_is_no_rule(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LossScale"):
        LossScale(**numbers)
