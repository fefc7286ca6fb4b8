import pytest
import torch

from pipekit import datasets


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.mnist(rows=5001), r"rows must be 1 to 5000 .*not 5001"),
        (lambda: datasets.mnist(rows=10, test_rows=10), r"test_rows must be 1 to 9 .*not 10"),
        (lambda: datasets.digits(rows=0), r"rows must be 1 to 1797 .*not 0"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
