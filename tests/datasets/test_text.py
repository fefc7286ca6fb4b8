from pathlib import Path

import pytest
import torch

from pipekit import datasets
from pipekit.datasets.text import library


def test_targets_are_the_text_one_byte_later() -> None:
    data = datasets.python_source(sequence=64, rows=100, test_rows=20)
    assert data.train_inputs.shape == data.train_targets.shape == (80, 64)
    assert data.test_inputs.shape == (20, 64)
    assert torch.equal(data.train_inputs[:, 1:], data.train_targets[:, :-1])
    assert b"self" in bytes(data.train_inputs.flatten().tolist())


def test_no_file_of_the_library_is_in_both_parts() -> None:
    train, test = ({file.path for file in part} for part in library())
    assert train
    assert test
    assert train.isdisjoint(test)


def test_rows_come_from_the_files_of_their_part() -> None:
    data = datasets.python_source(sequence=48, rows=60, test_rows=30)
    train, test = (b"".join(file.text for file in part) for part in library())
    assert all(bytes(row.tolist()) in train for row in data.train_inputs)
    assert all(bytes(row.tolist()) in test for row in data.test_inputs)


def test_the_seed_alone_chooses_the_windows() -> None:
    first, again, other = (datasets.python_source(16, 50, 10, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert torch.equal(first.test_inputs, again.test_inputs)
    assert not torch.equal(first.train_inputs, other.train_inputs)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.python_source(sequence=0), "sequence must be at least 1, not 0"),
        (lambda: datasets.python_source(16, 10**7), r"rows must be 1 to \d+ .*besides 400"),
        (lambda: datasets.python_source(16, 10, 10), r"rows must be 1 to .*not 0"),
        (lambda: datasets.python_source(10**7), r"test_rows must be 1 to 0 .*not 400"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
