import pytest
import torch

from pipekit import datasets
from pipekit.datasets.masking import IGNORED, MASK

TEXT = datasets.python_source(sequence=40, rows=2200, test_rows=200)


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


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_shares_that_leave_nothing_to_guess_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="choose one that leaves 1 to 40 to guess"):
        datasets.masked(TEXT, share)
