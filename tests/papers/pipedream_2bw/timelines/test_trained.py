import pytest

from pipekit import schedules
from pipekit.papers.pipedream_2bw.timelines.trained import Optimized, SmallNetwork


@pytest.fixture(scope="module")
def network() -> SmallNetwork:
    return SmallNetwork(batches=4, seed=0)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_methods_follow_their_equations_and_not_each_others(network: SmallNetwork) -> None:
    assert network.oracle_finding().value is True
    double = network.compared(schedules.two_bw, "2bw", precise=True)
    assert double.difference == 0
    assert network.compared(schedules.flush, "2bw").difference > 1e-4


def test_a_batch_has_b_rows_for_each_of_w_d_g_microbatches(network: SmallNetwork) -> None:
    assert [each.value for each in network.batch_findings(True)] == [True] * 4
    assert network.batch_findings(False)[2].value is False
    assert "microbatches" in network.batch_findings(True)[2].note


def test_findings_of_optimizers_are_the_tables(network: SmallNetwork) -> None:
    compared = {
        ("threads", name, width): network.compared(schedules.two_bw, "2bw", name, width=width)
        for name in ("momentum", "Adam")
        for width in (1, 2)
    }
    optimized = Optimized(compared, rows=32)
    assert optimized.table["b"].tolist() == [8, 4, 8, 4]
    momentum, crossing = optimized.findings()
    assert momentum.value == [optimized.table["difference"].max(), 1]
    assert "momentum 1, Adam 2" in momentum.note
    assert crossing.value == 0
