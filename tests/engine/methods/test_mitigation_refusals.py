"""What is refused of mitigations, before or in training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipekit import (
    Checkpoints,
    Pipeline,
    schedules,
)
from pipekit.staleness import Mitigation
from tests.engine.examples import (
    MODELS,
    data,
    values,
)
from tests.engine.methods.test_mitigations import ANY, CASES, PLAIN, both_ways, build


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mitigation": "guess"}, "must be one of spectrain"),
        ({"mitigation": "pipemare"}, "anneal"),
        ({"mitigation": "gap-aware:decoy=1"}, "decoy"),
        ({"mitigation": "gap-aware:decay=1"}, "decay must be from 0 to below 1"),
        ({"mitigation": "pipemare:anneal=-5"}, "anneal must be at least 0"),
        ({"mitigation": "pipeoptim:extra=-1"}, "extra must be at least 0"),
        ({"mitigation": "ahead:steps=-1"}, "steps must be at least 0"),
        ({"mitigation": "spectrain"}, r"stashing=False"),
    ],
    ids=str,
)
def test_what_a_pipeline_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Pipeline(MODELS["mixed"](), schedules.pipedream(2), **values(**PLAIN, **options))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [("sgd", "give it momentum"), ("nadam", "NAdam"), ("amsgrad", "amsgrad")],
)
def test_optimizers_whose_next_step_is_not_in_their_state(optimizer: str, message: str) -> None:
    case = CASES["spectrain"]._replace(optimizers=ANY, equations=None)
    pipe, _ = both_ways(case, MODELS["mixed"](), data(1), [4, 4], optimizer=optimizer)
    with pytest.raises(ValueError, match=message):
        pipe.train(data(1))


@pytest.mark.parametrize(
    ("answer", "wrong", "message"),
    [
        ("weights", lambda self, at, weight: weight.read.sum(), r"weights returned a tensor of sh"),
        ("updated", lambda self, at, weight, before: before[:1], r"updated returned a tensor of s"),
        ("gradient", lambda self, at, weight, gradient: None, r"gradient returned NoneType for a"),
    ],
)
def test_what_a_rule_answers_is_as_large_as_a_parameter(
    answer: str, wrong: Callable[..., Any], message: str
) -> None:
    rule: Mitigation = type("Wrong", (Mitigation,), {answer: wrong})()
    pipe = Pipeline(MODELS["mixed"](), schedules.pipedream(2), **values(mitigation=rule, **PLAIN))
    with pytest.raises(ValueError, match=f"Wrong.{message}"):
        pipe.train(data(2))


def test_checkpoints_go_with_their_mitigation(tmp_path: Path) -> None:
    build("gap-aware").train(data(2), checkpoints=Checkpoints(tmp_path, every=1))
    other = build("error feedback, pipedream")
    assert other.resume(tmp_path) == 0
    with pytest.raises(ValueError, match=r"GapAware\(.*ErrorFeedback\("):
        other.train(data(4))
