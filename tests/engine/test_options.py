"""Options as values: their own checks."""

from typing import Any

import pytest
import torch

from pipekit import Checkpoints, Execution, PipelinedModule, Updates, Watch
from tests.engine.examples import mlp


@pytest.mark.parametrize(
    ("value", "field", "given", "message"),
    [
        (Updates, "lr_step", "epoch", "lr_step must be one of update, call"),
        (Updates, "loss_scale", "static", "a number, 'dynamic', a pipekit.LossScale or None"),
        (Updates, "mitigation", "hope", "mitigation must be one of"),
        (Execution, "autocast", torch.int8, "not torch.int8"),
        (Execution, "recompute", "sometimes", "never, except_last, always"),
        (Execution, "recompute", ["never", "now"], "not 'now'"),
        (Execution, "timeout", 0, "more than 0 s, or None for never, not 0"),
    ],
)
def test_a_value_checks_its_fields(value: Any, field: str, given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        value(**{field: given})


@pytest.mark.parametrize(("field", "given"), [("groups", 3), ("lr_scheduler", "cosine")])
def test_a_function_must_be_one(field: str, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} must be a function"):
        Updates(**{field: given})
    with pytest.raises(TypeError, match=r"a pipekit.staleness.Mitigation or the name of one"):
        Updates(mitigation=given if callable(given) else 3)  # type: ignore[arg-type]


def test_checkpoints_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="every must be at least 1 batch, not 0"):
        Checkpoints("folder", every=0)
    with pytest.raises(ValueError, match="keep must be at least 1 checkpoint, not 0"):
        Checkpoints("folder", keep=0)


def test_a_module_shows_no_bar() -> None:
    with pytest.raises(ValueError, match="leave progress and outputs out of watch"):
        PipelinedModule(mlp(6, 3), [1], chunks=1, watch=Watch(progress=True))
