"""Values through shared memory: as they were, and each the receiver's own."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipekit.engine.transports.processes.handing_over import Parcel, Receiver, Sender
from pipekit.engine.transports.processes.shared_memory import SharedBuffer
from tests.engine.transports.processes.test_pickles import TENSORS


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_as_it_was(name: str) -> None:
    buffer, tensor = SharedBuffer(), TENSORS[name]
    there = Receiver(buffer).unpacked(Sender(buffer).parcel({"given": tensor}))["given"]

    assert torch.equal(there.to_dense(), tensor.to_dense())
    assert (there.dtype, there.requires_grad) == (tensor.dtype, tensor.requires_grad)


def test_numbers_pass_through_memory_and_later_ones_take_their_place() -> None:
    buffer = SharedBuffer()
    sender, receiver = Sender(buffer), Receiver(buffer)
    first = nn.Linear(600, 600)  # more than the buffer has at first
    parcels: list[Parcel] = []
    there: list[nn.Linear] = []
    for layer in (first, nn.Linear(600, 600), nn.Linear(3, 3)):
        parcels.append(sender.parcel(layer))
        there.append(receiver.unpacked(parcels[-1]))

    assert torch.equal(there[0].weight, first.weight), "a copy, which nobody writes to later"
    assert len(pickle.dumps(parcels[0])) < 4000
    assert len({parcel.places[0] for parcel in parcels[:2]}) == 1


def test_what_has_no_tensors_needs_no_memory() -> None:
    buffer = SharedBuffer()
    assert Receiver(buffer).unpacked(Sender(buffer).parcel(("done", 3))) == ("done", 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.booleans()), max_size=8))
def test_a_value_overwrites_the_last_one_only_if_it_may_and_only_numbers_differ(
    sent: list[tuple[bool, int, bool]],
) -> None:
    buffer = SharedBuffer()
    sender, receiver = Sender(buffer), Receiver(buffer)
    last: dict[str, Any] = {}
    for number, (again, about, long) in enumerate(sent):
        numbers = torch.full((3 + long,), float(number))
        layer = nn.Linear(2, 2)
        there = receiver.unpacked(
            sender.parcel({"about": about, "numbers": numbers, "layer": layer}, again)
        )

        assert there["about"] == about
        assert torch.equal(there["numbers"], numbers)
        assert torch.equal(there["layer"].weight, layer.weight)
        alike = bool(last) and last["about"] == about and len(last["numbers"]) == len(numbers)
        assert (there is last) == (again and alike)
        last = there
