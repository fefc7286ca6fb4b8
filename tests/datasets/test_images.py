"""Digits that come in packages: whole, split without overlap, in one size, shifted anew."""

import torch

from pipekit.datasets import digits, handwriting, mnist


def test_mnist_is_5000_real_images_of_all_ten_classes_split_without_overlap() -> None:
    data = mnist()
    assert data.train_inputs.shape == (4000, 1, 28, 28)
    assert data.test_inputs.shape == (1000, 1, 28, 28)
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.dtype == torch.int64
    everything = torch.cat([data.train_inputs, data.test_inputs])
    assert (everything.min().item(), everything.max().item()) == (0, 1)
    assert len(everything.flatten(1).unique(dim=0)) == 5000
    classes = torch.cat([data.train_targets, data.test_targets])
    assert classes.bincount().tolist() == [500] * 10


def test_it_has_all_images_of_both_sources() -> None:
    data = handwriting(pixels=12)
    assert data.train_inputs.shape == (6797 - 359 - 1000, 1, 12, 12)
    assert data.test_inputs.shape == (1359, 1, 12, 12)
    assert (len(data.train_targets), len(data.test_targets)) == (5438, 1359)
    classes = torch.cat([data.train_targets, data.test_targets]).bincount()
    ours = torch.cat([part.train_targets for part in (digits(test_rows=1), mnist(test_rows=1))])
    assert int((classes - ours.bincount()).abs().sum()) == 2  # the one test row of each


def test_nothing_that_is_tested_on_is_trained_on() -> None:
    data = handwriting(pixels=12)
    learnt = {row.numpy().tobytes() for row in data.train_inputs}
    assert not any(row.numpy().tobytes() in learnt for row in data.test_inputs)


def test_batches_are_shifted_by_at_most_a_pixel_and_are_repeatable() -> None:
    data = handwriting(pixels=8)
    first, again, later = (data.batches(4, seed=1, epoch=e)[0] for e in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], later[0])
    inner = first[0][:, :, 1:-1, 1:-1]
    padded = torch.nn.functional.pad(data.train_inputs, [1] * 4)
    for row in inner:
        assert any(
            (padded[:, :, y + 1 : y + 7, x + 1 : x + 7] == row).flatten(1).all(1).any()
            for y in range(3)
            for x in range(3)
        )
