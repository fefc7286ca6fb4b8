"""Forward passes alone: outputs, and several metrics of them at once."""

import pytest
import torch
from torch import Tensor, nn

from pipekit import MeanOver, schedules
from tests.engine.examples import data, mixed, mlp, pipeline
from tests.engine.parametrized import TRANSPORTS
from tests.people.test_torchgpipe import Calls


def largest(output: Tensor, target: Tensor) -> Tensor:
    return output.max()


@TRANSPORTS
def test_outputs_are_the_unsplit_models(transport: str) -> None:
    model = mixed().eval()
    inputs = [x for x, _ in data(rows=[4, 1, 5])]
    outputs = pipeline(mixed(), "flush", [4, 4], transport=transport).predict(inputs)
    with torch.no_grad():
        assert all(map(torch.equal, outputs, map(model, inputs)))
    assert len(outputs) == 3


def test_outputs_may_be_structures_and_inputs_are_read_as_they_are_needed() -> None:
    model = nn.Sequential(nn.Linear(6, 3), Calls(lambda x: {"once": x, "twice": 2 * x}))
    pipe = pipeline(model, schedules.flush(2, 1), [1, 1])
    (output,) = pipe.predict(x for x in [torch.ones(2, 6)])
    assert torch.equal(output["twice"], 2 * output["once"])
    assert not output["once"].requires_grad


@TRANSPORTS
def test_several_metrics_come_by_name_each_as_if_alone(transport: str) -> None:
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport=transport)
    batches = data(rows=[4, 2, 7])
    summed = nn.MSELoss(reduction="sum")  # over rows of 3 numbers
    found = pipe.evaluate(batches, {"loss": nn.MSELoss(), "sum": summed, "max": largest})
    assert found["loss"] == pipe.evaluate(batches)
    assert found["sum"] == pytest.approx(3 * found["loss"])
    assert found["max"] == pipe.evaluate(batches, largest)


def test_nothing_to_predict_is_refused() -> None:
    with pytest.raises(ValueError, match="no batches to run"):
        pipeline(mlp(6, 6, 3), "flush", [1, 1]).predict([])


def test_a_mean_over_nothing_is_refused() -> None:
    uncounted = MeanOver(nn.MSELoss(reduction="sum"), count=lambda target: 0)
    with pytest.raises(ValueError, match="nothing that a metric counts"):
        pipeline(mlp(6, 6, 3), "flush", [1, 1]).evaluate(data(), uncounted)
