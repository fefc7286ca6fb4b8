from experiments.pipedream.convergence import asp


def test_a_gradient_takes_longer_to_send_than_to_compute_on_four_of_cluster_a() -> None:
    transfer, compute = asp.gradient_seconds(asp.SETTING)
    assert transfer > compute > 0
    found = asp.finding({3: 0.6, 7: 0.5}, faster=20)
    assert found.value == 0.5
    assert f"takes {transfer:.2f} s to reach all workers and {compute:.2f} s" in found.note
