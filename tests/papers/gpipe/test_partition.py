import numpy as np
import pytest

from pipekit import Profile
from pipekit.papers.gpipe import partition
from pipekit.profiling import LayerProfile


def test_estimated_flops_are_those_by_hand() -> None:
    assert set(partition.cost_errors([1, 5])) == {0}


def test_splits_are_all_that_there_are() -> None:
    assert list(partition.splits(4, 2)) == [[1, 3], [2, 2], [3, 1]]
    assert len(list(partition.splits(9, 4))) == 56


def test_the_partitioner_finds_the_least_variance() -> None:
    assert partition.excess_variance(30, seed=1) == 0


def test_a_worse_split_has_a_larger_variance() -> None:
    costs = [3, 1, 1, 3]
    variance = [np.var(partition.stage_costs(costs, split)) for split in partition.splits(4, 2)]
    assert variance == [1, 0, 1]


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_the_formula_is_the_simulated_time_of_unequal_phases(recompute: str) -> None:
    times = [(1, 5), (2, 1), (4, 3), (1, 2), (3, 2), (2, 4)]
    layers = tuple(LayerProfile("layer", f, b, 0, 0) for f, b in times)
    profile = Profile(layers, input_bytes=0, provenance={"label": "exact"})
    for stages in (2, 3, 6):
        row = partition.imbalance(profile, stages, 8, recompute)  # type: ignore[arg-type]
        assert row["loss (formula)"] == pytest.approx(row["loss (simulated)"], abs=1e-9)
        assert row["loss (simulated)"] != pytest.approx(0)


def test_equal_stages_lose_nothing() -> None:
    row = partition.imbalance(Profile.uniform(8), 4, 8, "never")
    assert row["max / mean stage time"] == 1
    assert row["loss (simulated)"] == pytest.approx(0)
