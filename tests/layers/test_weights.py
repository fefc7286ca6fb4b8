"""What a forward does to weights is found, and put back."""

import math

import pytest
import torch
from torch import Tensor, nn

from pipekit.layers.edited_tensors import KeptTensors, weights_untouched


def edit(weight: Tensor, how: str) -> None:
    """Change one number."""
    with torch.no_grad():
        match how:
            case "in place":
                weight.view(-1)[0] = 5
            case "data in place":
                weight.data.view(-1)[0] = 5
            case "to no number":
                weight.view(-1)[0] = math.nan
            case "other data":
                weight.data = torch.full_like(weight, 5)


@pytest.mark.parametrize("how", ["in place", "data in place", "to no number", "other data"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_is_edited_is_named_and_put_back(how: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(2, 2, dtype=dtype), nn.Linear(2, 2, dtype=dtype))
    weight = model.get_parameter("1.weight")
    before, memory = weight.detach().clone(), weight.data_ptr()
    kept = KeptTensors(model.named_parameters(), copied=True)
    edit(weight, how)
    assert kept.edited() == ["1.weight"]
    assert kept.rebound() == (["1.weight"] if how == "other data" else [])
    kept.put_back()
    assert kept.edited() == kept.rebound() == []
    assert torch.equal(weight, before)
    assert weight.data_ptr() == memory


def test_no_number_is_equal_to_itself() -> None:
    model = nn.Linear(1, 1)
    edit(model.weight, "to no number")
    assert KeptTensors(model.named_parameters(), copied=True).edited() == []


def test_it_is_put_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    before = model.weight.detach().clone()

    def fails() -> None:
        with weights_untouched(model):
            edit(model.weight, "in place")
            raise OSError("a forward fails")

    with pytest.raises(OSError, match="a forward fails"):
        fails()
    assert torch.equal(model.weight, before)


def test_weights_that_a_forward_makes_stay() -> None:
    model = nn.LazyLinear(2)
    with weights_untouched(model):
        model(torch.ones(1, 3))
    assert model.weight.shape == (2, 3)
