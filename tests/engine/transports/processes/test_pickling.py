"""Objects that go from one process to another, and arrive as they were."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.engine.transports.processes.pickling import Parcel, Sender, dumps, unpacked
from pipekit.engine.transports.processes.shared_mailbox import SharedBuffer

TENSORS = {
    "float32": torch.randn(3, 4),
    "bfloat16": torch.randn(3, 4).bfloat16(),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "conjugate": torch.randn(2, 2, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False]),
    "a number": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "a part": torch.arange(12.0).reshape(3, 4)[1],
    "trained": torch.randn(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
}


def back(value: Any) -> Any:
    return pickle.loads(dumps(value))


def through_memory(value: Any) -> Any:
    buffer = SharedBuffer()
    return unpacked(Sender(buffer).parcel({"beside": torch.ones(3), "given": value}), buffer)[
        "given"
    ]


@pytest.mark.parametrize("way", [back, through_memory])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_as_it_was(name: str, way: Callable[[Any], Any]) -> None:
    tensor = TENSORS[name]
    there = way(tensor)
    assert torch.equal(there.to_dense(), tensor.to_dense())
    for alike in ("dtype", "shape", "requires_grad"):
        assert getattr(there, alike) == getattr(tensor, alike)
    assert there.is_conj() == tensor.is_conj()
    if not tensor.is_sparse:
        assert there.stride() == tensor.stride()


def test_a_module_keeps_its_parameters_and_what_it_shares() -> None:
    layer = nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = layer.weight
    there = back(nn.Sequential(layer, nn.BatchNorm1d(3), tied))

    assert isinstance(there[0].weight, nn.Parameter)
    assert there[2].weight is there[0].weight
    assert torch.equal(there[0].weight, layer.weight)
    with torch.no_grad():
        there[0].weight.zero_()  # nobody else's memory
    assert layer.weight.count_nonzero()


def test_what_only_a_script_knows_comes_too() -> None:
    scale = torch.tensor(3.0)

    def tripled(x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten.mul(x, scale)
        return product

    assert back(tripled)(torch.ones(1)).item() == 3


def test_numbers_pass_through_memory_and_later_ones_take_their_place() -> None:
    buffer = SharedBuffer()
    sender = Sender(buffer)
    first = nn.Linear(600, 600)  # more than the buffer has at first
    parcels: list[Parcel] = []
    there: list[nn.Linear] = []
    for layer in (first, nn.Linear(600, 600), nn.Linear(3, 3)):
        parcels.append(sender.parcel(layer))
        there.append(unpacked(parcels[-1], buffer))

    assert torch.equal(there[0].weight, first.weight), "a copy, which nobody writes to later"
    assert len(pickle.dumps(parcels[0])) < 4000
    assert len({parcel.start for parcel in parcels}) == 1
