"""Distances between sets of tensors."""

import torch

from pipekit.papers.differences import bit_equal, largest_difference, relative_difference


def test_distances_are_those_of_all_weights_together() -> None:
    a = {"x": torch.tensor([3.0, 0.0]), "y": torch.tensor([1.0])}
    b = {"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([5.0])}
    assert largest_difference(a, b) == 4
    assert relative_difference(a, b) == 1
    assert not bit_equal(a, b)
    assert bit_equal(a, dict(a))
    assert not bit_equal(a, {"x": a["x"]})
