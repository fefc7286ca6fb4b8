from experiments.pipedream_2bw.settings import FIGURE6, OPTIMIZER_STATES


def test_smaller_batches_have_as_many_microbatches_as_stages() -> None:
    for panel in FIGURE6.values():
        assert panel.width * panel.depth == panel.cluster.workers == 8 * panel.servers
        assert panel.batches[0] == panel.microbatch_rows * panel.width * panel.depth
        assert panel.microbatch_rows == 8


def test_two_versions_a_gradient_and_adam_take_18_bytes_a_parameter() -> None:
    assert 2 * (2 + 1 + OPTIMIZER_STATES) == 18  # as the ledger counts for Figure 9
