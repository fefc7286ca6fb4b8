"""Memory that processes share, and objects that travel through it as they were."""

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.engine.transports.processes.shared_memory import (
    FIRST_BYTES,
    Parcel,
    Sender,
    SharedBuffer,
    dumps,
    unpacked,
)


@pytest.fixture(params=["memfd", "a temporary file"])
def _either_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "memfd":
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("_either_kind")
def test_every_map_shows_the_same() -> None:
    buffer, other = SharedBuffer(), SharedBuffer.__new__(SharedBuffer)
    other._hold(os.dup(buffer._fd))
    starts = [buffer.allocate(size) for size in (100, FIRST_BYTES // 2, FIRST_BYTES, 10)]
    maps = []
    for number, start in enumerate(starts):
        buffer.map(start)[start] = number
        maps.append(other.map(start))
        assert maps[-1][start] == number
    buffer.map(0)[0] = 77
    assert [memory[0] for memory in maps] == [77] * 4
    buffer.close()
    other.close()


def test_pieces_do_not_overlap_nor_lie_across_what_was_mapped() -> None:
    buffer, end = SharedBuffer(), 0
    for size in (4096, 1 << 19, 1 << 20, 64, 1 << 23, 1 << 22):
        start = buffer.allocate(size)
        assert start >= end
        end = start + size
        assert end <= len(buffer.map(start))
    buffer.close()


def test_after_closing_the_file_is_not_mistaken_for_another() -> None:
    buffer = SharedBuffer()
    buffer.close()
    with pytest.raises(OSError, match="Bad file"):
        buffer.map(0)


def test_the_file_ends_with_the_object_at_the_latest() -> None:
    """An interrupt may come before whoever made it knows it."""
    buffer = SharedBuffer()
    fd, buffer = buffer._fd, SharedBuffer()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    buffer.close()


@pytest.mark.usefixtures("_either_kind")
def test_it_has_no_name_so_it_ends_with_its_last_holder() -> None:
    buffer = SharedBuffer()
    assert os.fstat(buffer._fd).st_nlink == 0
    buffer.close()


# --- objects

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
    return unpacked(Sender(buffer).parcel({"given": value}), buffer)["given"]


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
        return x * scale

    assert back(tripled)(torch.ones(1)).item() == 3


def test_a_function_that_took_the_place_of_pytorchs_own_comes_as_it_is() -> None:
    def other(x: Tensor) -> Tensor:
        return x + 1

    other.__module__, other.__qualname__ = "torch", "relu"  # as a decorator names what it returns
    assert back(torch.relu) is torch.relu
    assert back(nn.Linear) is nn.Linear
    assert back(other)(torch.zeros(1)).item() == 1


def test_it_takes_little_more_than_the_numbers() -> None:
    assert len(dumps(torch.zeros(1000))) < 4200


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
    assert len({parcel.places[0] for parcel in parcels[:2]}) == 1


def test_what_has_no_tensors_needs_no_memory() -> None:
    buffer = SharedBuffer()
    assert unpacked(Sender(buffer).parcel(("done", 3)), buffer) == ("done", 3)
