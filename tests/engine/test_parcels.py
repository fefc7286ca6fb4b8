"""What travels to another process arrives as it was."""

from typing import Any

import pytest
import torch

from pipekit.engine.parcels import pack, unpack

TENSORS = {
    **{str(kind): torch.ones(3, 4).to(kind) for kind in (torch.int64, torch.bfloat16, torch.bool)},
    "complex": torch.randn(3, 4, dtype=torch.complex64),
    "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "transposed": torch.randn(4, 3).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sliced": torch.randn(3, 8)[:, ::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(3, 0, 2),
    "leaf": torch.randn(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_values_types_and_strides(name: str) -> None:
    tensor = TENSORS[name]
    (got, again), text = unpack(pack(([tensor, tensor], {"text": "as it was"})))
    assert text == {"text": "as it was"}
    for copy in (got, again):
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy.to_dense(), tensor.detach().to_dense())
        if tensor.layout is torch.strided and name != "expanded":
            assert copy.stride() == tensor.stride()


@pytest.mark.parametrize("value", [None, 3, "text", (1, [2], {"a": 3.5}), torch.Size([1, 2])])
def test_other_things(value: Any) -> None:
    assert unpack(pack(value)) == value


def test_a_view_does_not_take_along_what_it_is_a_view_of() -> None:
    rows = torch.zeros(10_000, 100)[:5]
    assert len(pack(rows)) < 2 * 5 * 100 * 4


def test_what_arrives_may_be_edited() -> None:
    unpack(pack(torch.zeros(3))).add_(1)
