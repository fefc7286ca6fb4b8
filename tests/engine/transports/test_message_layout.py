"""What a message looks like."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pipekit.engine.transports.message_layout import form_of, layouts
from pipekit.trees import leaves


class Pair(NamedTuple):
    one: Tensor
    two: Any


MESSAGES: dict[str, Any] = {
    "tensor": torch.randn(3, 2),
    "list": [torch.randn(2), torch.randn(3)],
    "nested": (torch.randn(2), {"a": [torch.arange(3)], 7: (torch.ones(1) > 0,)}),
    "named": Pair(torch.randn(2), [torch.randn(1)]),
    "transposed": torch.randn(2, 5).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "gaps": torch.randn(4, 6)[:, ::2],
    "expanded": torch.randn(4, 1).expand(4, 3),
    "empty": (torch.empty(4, 0), torch.ones(2)),
    "scalar": torch.tensor(3.5),
    "types": [torch.ones(2, dtype=t) for t in (torch.bfloat16, torch.float64, torch.complex64)],
    "nothing": [],
}


def described(tree: Any) -> Any:
    """Everything about a message, so that it can be compared."""
    if isinstance(tree, Tensor):
        return tree.dtype, tuple(tree.shape), tree.tolist()
    if isinstance(tree, dict):
        return {key: described(value) for key, value in tree.items()}
    return type(tree), [described(item) for item in tree]


def test_equal_forms_for_equal_layouts_only() -> None:
    assert form_of(torch.ones(2, 3)) == form_of(torch.zeros(2, 3))
    for other in (torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(1, 3)):
        assert form_of(other) != form_of(torch.ones(2, 3))
    assert form_of([torch.ones(2)]) != form_of(torch.ones(2))
    assert form_of([torch.ones(2)]) != form_of((torch.ones(2),))
    assert form_of({"a": torch.ones(2)}) != form_of({"b": torch.ones(2)})


@pytest.mark.parametrize("name", MESSAGES)
def test_extents_reach_to_the_last_element(name: str) -> None:
    for tensor, layout in zip(
        leaves(MESSAGES[name]), layouts(form_of(MESSAGES[name])), strict=True
    ):
        storage = torch.empty(layout.extent, dtype=torch.uint8).view(tensor.dtype)
        storage.as_strided(layout.shape, layout.strides)  # raises if it does not fit
        if layout.extent:
            with pytest.raises(RuntimeError, match="out of bounds"):
                storage[:-1].clone().as_strided(layout.shape, layout.strides)
