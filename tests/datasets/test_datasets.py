"""Data sets: batches, images in packages, and text."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipekit import datasets
from pipekit.datasets import Dataset, digits, handwriting, mnist
from pipekit.datasets.text import IGNORED, MASK, library


def numbered(rows: int) -> Dataset:
    """A data set whose row r is the number r, with target -r."""
    inputs = torch.arange(rows)
    return Dataset("numbers", "this test", inputs, -inputs, inputs + 100, -inputs - 100)


def test_an_epoch_has_every_row_once_with_its_own_target() -> None:
    batches = numbered(12).batches(4)
    inputs = torch.cat([inputs for inputs, _ in batches])
    assert sorted(inputs.tolist()) == list(range(12))
    assert all(torch.equal(targets, -inputs) for inputs, targets in batches)


@pytest.mark.parametrize("made", [digits, mnist])
def test_rows_are_on_the_cpu_wherever_new_tensors_begin(made: Callable[[], Dataset]) -> None:
    torch.set_default_device("meta")
    try:
        x, y = made().batches(8)[0]
    finally:
        torch.set_default_device("cpu")
    assert x.device == y.device == torch.device("cpu")


def test_an_epoch_has_full_batches_only() -> None:
    assert [len(inputs) for inputs, _ in numbered(10).batches(4)] == [4, 4]
    assert [len(inputs) for inputs, _ in numbered(8).batches(4)] == [4, 4]


def test_shuffling_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        ((inputs, _),) = numbered(50).batches(50, seed, epoch)
        return inputs.tolist()

    assert order(3, 5) == order(3, 5)
    assert order(3, 5) != list(range(50))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_test_batches_keep_their_order_and_the_last_rows() -> None:
    batches = numbered(5).test_batches(2)
    assert [inputs.tolist() for inputs, _ in batches] == [[100, 101], [102, 103], [104]]
    assert [targets.tolist() for _, targets in batches] == [[-100, -101], [-102, -103], [-104]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: numbered(10).batches(11), r"batch_rows must be 1 to 10 .*not 11"),
        (lambda: numbered(10).batches(0), r"batch_rows must be 1 to 10 .*not 0"),
        (lambda: numbered(10).test_batches(0), "batch_rows must be at least 1, not 0"),
        (lambda: datasets.mnist(rows=5001), r"rows must be 1 to 5000 .*not 5001"),
        (lambda: datasets.mnist(rows=10, test_rows=10), r"test_rows must be 1 to 9 .*not 10"),
        (lambda: datasets.digits(rows=0), r"rows must be 1 to 1797 .*not 0"),
        (lambda: datasets.handwriting(pixels=0), "pixels must be 1 to 1024"),
        (lambda: datasets.python_source(sequence=0), "sequence must be at least 1, not 0"),
        (lambda: datasets.python_source(16, 10**7), r"rows must be 1 to \d+ .*besides 400"),
        (lambda: datasets.python_source(16, 10, 10), r"rows must be 1 to .*not 0"),
        (lambda: datasets.python_source(10**7), r"test_rows must be 1 to 0 .*not 400"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


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


TEXT = datasets.python_source(sequence=40, rows=2200, test_rows=200)


def test_targets_are_the_text_one_byte_later() -> None:
    data = datasets.python_source(sequence=64, rows=100, test_rows=20)
    assert data.train_inputs.shape == data.train_targets.shape == (80, 64)
    assert data.test_inputs.shape == (20, 64)
    assert torch.equal(data.train_inputs[:, 1:], data.train_targets[:, :-1])
    assert b"self" in bytes(data.train_inputs.flatten().tolist())


def test_no_file_of_the_library_is_in_both_parts() -> None:
    train, test = (set(part) for part in library())
    assert train
    assert test
    assert train.isdisjoint(test)


def test_a_files_last_tenth_is_for_testing(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(b"z" * 900 + bytes(range(100)))
    data = datasets.text_file(file, sequence=10)
    assert data.name == "mine"
    assert data.train_inputs.unique().tolist() == [ord("z")]
    assert len(data.train_inputs) == 89
    assert sorted(data.test_inputs[:, 0].tolist()) == list(range(0, 90, 10))


def test_a_file_too_short_for_a_row_in_each_part_says_how_long_it_must_be(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_bytes(b"x" * 109)
    with pytest.raises(
        ValueError, match=r"short.txt has 109 bytes, .* need at least 110, .*longer"
    ):
        datasets.text_file(file, sequence=10)
    file.write_bytes(b"x" * 110)
    assert len(datasets.text_file(file, sequence=10).test_inputs) == 1


def test_every_row_has_equally_many_bytes_to_guess_and_their_truth_as_targets() -> None:
    masked = datasets.masked(TEXT)
    for (shown, targets), (tokens, _) in zip(
        masked.batches(100, seed=3), TEXT.batches(100, seed=3), strict=True
    ):
        guessed = targets != IGNORED
        assert (guessed.sum(dim=1) == 6).all()  # 15 % of 40
        assert torch.equal(targets[guessed], tokens[guessed])
        assert torch.equal(shown[~guessed], tokens[~guessed])


def test_of_ten_bytes_to_guess_eight_are_hidden_one_is_wrong_and_one_shown() -> None:
    ((shown, targets),) = datasets.masked(TEXT).batches(2000)
    guessed = targets != IGNORED  # 12,000: a share's standard deviation is below 0.4 %
    hidden = (shown == MASK)[guessed].double().mean()
    right = (shown == targets)[guessed].double().mean()
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert right == pytest.approx(0.1 + 0.1 / 256, abs=0.015)


def test_masks_are_new_in_every_epoch_and_the_same_in_every_test() -> None:
    masked = datasets.masked(TEXT)
    first, again, later = (masked.batches(2000, 0, epoch)[0][0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first == MASK, later == MASK)
    (one, _), (two, _) = masked.test_batches(200)[0], masked.test_batches(200)[0]
    assert torch.equal(one, two)
    assert (one == MASK).any()
