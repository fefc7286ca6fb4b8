from pipekit import schedules
from pipekit.papers.pipedream.table1 import data_parallelism as table1


def test_data_parallelism_has_the_gradient_of_one_big_batch() -> None:
    assert table1.gradient_difference(3) < 1e-12
    assert schedules.optimal_in_flight([3]) == [1]
