import pytest
import torch

from pipekit import datasets
from pipekit.datasets import Dataset


def numbered(rows: int) -> Dataset:
    """A data set whose row r is the number r, with target -r."""
    inputs = torch.arange(rows)
    return Dataset("numbers", "this test", inputs, -inputs, inputs + 100, -inputs - 100)


def test_mnist_is_5000_real_images_of_all_ten_classes_split_without_overlap() -> None:
    data = datasets.mnist()
    assert data.train_inputs.shape == (4000, 1, 28, 28)
    assert data.test_inputs.shape == (1000, 1, 28, 28)
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.dtype == torch.int64
    everything = torch.cat([data.train_inputs, data.test_inputs])
    assert (everything.min().item(), everything.max().item()) == (0, 1)
    assert len(everything.flatten(1).unique(dim=0)) == 5000
    classes = torch.cat([data.train_targets, data.test_targets])
    assert classes.bincount().tolist() == [500] * 10


def test_mnist_images_belong_to_their_classes() -> None:
    # The nearest class mean recognises about four of five digits; mixed-up rows give one of ten.
    data = datasets.mnist()
    means = torch.stack([data.train_inputs[data.train_targets == c].mean(0) for c in range(10)])
    distances = torch.cdist(data.test_inputs.flatten(1), means.flatten(1))
    assert (distances.argmin(1) == data.test_targets).float().mean() > 0.75


def test_mnist_split_depends_on_the_seed_only() -> None:
    first, again, other = (datasets.mnist(300, 100, seed=seed) for seed in (1, 1, 2))
    assert len(first.train_targets) == 200
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert not torch.equal(first.train_inputs, other.train_inputs)


def test_digits_are_8x8_images_in_0_to_1() -> None:
    data = datasets.digits()
    assert data.train_inputs.shape == (1437, 1, 8, 8)
    assert data.test_inputs.shape == (360, 1, 8, 8)
    assert (data.train_inputs.min().item(), data.train_inputs.max().item()) == (0, 1)
    assert data.train_targets.unique().tolist() == list(range(10))


def test_python_source_targets_are_the_text_one_byte_later() -> None:
    data = datasets.python_source(sequence=64, rows=100, test_rows=20)
    assert data.train_inputs.shape == data.train_targets.shape == (80, 64)
    assert data.test_inputs.shape == (20, 64)
    text = torch.cat([data.train_inputs, data.test_inputs]).flatten()
    following = torch.cat([data.train_targets, data.test_targets]).flatten()
    assert torch.equal(text[1:], following[:-1])
    assert b"import" in bytes(text.tolist())


def test_an_epoch_has_every_row_once_with_its_own_target() -> None:
    batches = numbered(10).batches(4, drop_last=False)
    assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
    inputs = torch.cat([inputs for inputs, _ in batches])
    assert sorted(inputs.tolist()) == list(range(10))
    assert all(torch.equal(targets, -inputs) for inputs, targets in batches)


def test_drop_last_keeps_full_batches_only() -> None:
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
        (lambda: datasets.mnist(rows=5001), r"rows must be 1 to 5000 .*not 5001"),
        (lambda: datasets.mnist(rows=10, test_rows=10), r"test_rows must be 1 to 9 .*not 10"),
        (lambda: datasets.digits(rows=0), r"rows must be 1 to 1797 .*not 0"),
        (lambda: datasets.python_source(sequence=0), "sequence must be at least 1, not 0"),
        (lambda: datasets.python_source(10**6, rows=10**4), r"rows must be 1 to \d+ .*not 10000"),
        (lambda: numbered(10).batches(11), r"batch_rows must be 1 to 10 .*not 11"),
        (lambda: numbered(10).batches(0), r"batch_rows must be 1 to 10 .*not 0"),
        (lambda: numbered(10).test_batches(0), "batch_rows must be at least 1, not 0"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
