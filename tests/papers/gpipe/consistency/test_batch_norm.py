import pytest

from pipekit.datasets import Batch, digits
from pipekit.papers.gpipe.consistency import batch_norm
from pipekit.plans import Recompute


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    return digits().batches(32)[:3]


def test_each_microbatch_is_normalised_by_itself(batches: list[Batch]) -> None:
    equal, apart = batch_norm.microbatch_statistics(batches[0], stages=3, microbatches=4)
    assert equal
    assert apart > 1e-3
    _, apart = batch_norm.microbatch_statistics(batches[0], stages=3, microbatches=1)
    assert apart < 1e-6


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
def test_moving_averages_count_a_whole_minibatch_once(
    batches: list[Batch], recompute: Recompute
) -> None:
    own, times, unsplit = batch_norm.moving_averages(batches, 3, 4, recompute)
    assert own < 1e-6
    assert times == 1
    assert unsplit > 1e-5  # the second layer sees other inputs


def test_partitions_agree_to_the_bit_with_batch_norm_too(
    batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with more, sums are split and rounded otherwise
    assert batch_norm.partitions_agree(batches, [1, 2, 4], microbatches=4)
