"""Texts to write, to read and to guess: rows of bytes, from the part that they say."""

from pathlib import Path

import pytest
import torch

from pipekit import datasets
from pipekit.datasets.text import IGNORED, MASK, library

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
