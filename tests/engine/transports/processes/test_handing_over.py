"""Values through shared memory: as they were, and each the receiver's own."""

import pickle

import pytest
import torch
from torch import nn

from pipekit.engine.transports.processes.handing_over import Parcel, Sender, unpacked
from pipekit.engine.transports.processes.shared_memory import SharedBuffer
from tests.engine.transports.processes.test_pickles import TENSORS


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_as_it_was(name: str) -> None:
    buffer, tensor = SharedBuffer(), TENSORS[name]
    there = unpacked(Sender(buffer).parcel({"given": tensor}), buffer)["given"]

    assert torch.equal(there.to_dense(), tensor.to_dense())
    assert (there.dtype, there.requires_grad) == (tensor.dtype, tensor.requires_grad)


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
