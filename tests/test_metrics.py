import math

import pytest
import torch

from pipekit.metrics import ACCURACY, BITS_PER_BYTE, accuracy, bits_per_byte


def test_accuracy_counts_the_largest_logit() -> None:
    output = torch.tensor([[0.0, 1.0], [3.0, 2.0], [0.0, 9.0], [1.0, 0.0]])
    assert accuracy(output, torch.tensor([1, 0, 0, 0])) == 0.75


def test_who_knows_nothing_needs_8_bits_a_byte_and_who_knows_all_none() -> None:
    targets = torch.randint(256, (3, 5))
    assert bits_per_byte(torch.zeros(3, 5, 256), targets) == pytest.approx(8)
    sure = 100 * torch.nn.functional.one_hot(targets, 256).float()
    assert bits_per_byte(sure, targets) == pytest.approx(0)


def test_a_choice_of_four_bytes_is_two_bits() -> None:
    logits = torch.full((1, 1, 256), -math.inf)
    logits[..., [7, 70, 170, 250]] = 0.3
    assert bits_per_byte(logits, torch.tensor([[70]])) == pytest.approx(2)


def test_each_is_written_as_its_field_does() -> None:
    assert ACCURACY.shown(0.9514) == "95.1%"
    assert BITS_PER_BYTE.shown(2.34567) == "2.346"
