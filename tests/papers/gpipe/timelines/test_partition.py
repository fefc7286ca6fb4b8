import numpy as np

from pipekit.papers.gpipe.timelines import partition


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
