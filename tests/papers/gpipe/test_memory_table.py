"""Table 1's columns beside the memory model, on a small network in place of AmoebaNet-D."""

import pytest

from pipekit.papers.gpipe import memory, memory_table
from pipekit.papers.gpipe.memory import COLUMNS, GB
from pipekit.profiling import LayerProfile, Profile


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> memory_table.Table1:
    """Return Table 1, as if every network had 16 layers of F MB of weights and of activations."""

    def network(layers: int, filters: int) -> Profile:
        size = filters * 1e6
        layer = LayerProfile("layer", 1, 2, flops=1, parameter_bytes=4 * size, saved_bytes=size)
        return Profile((layer,) * 16, rows=8)

    monkeypatch.setattr(memory, "amoebanet", network)
    return memory_table.table1()


def test_every_column_has_what_the_paper_prints_and_what_the_model_counts(
    table: memory_table.Table1,
) -> None:
    assert list(table) == list(COLUMNS)
    naive = memory_table.frame(table)["naive-1"]
    filters = table["naive-1"].column.filters
    assert naive["(L, F)"] == f"(6, {filters})"
    assert naive["parameters (millions), exact"] == 16 * filters
    assert naive["of activations (GB), simulated"] == pytest.approx(16 * 16 * filters * 1e6 / GB)
    assert len(memory_table.accelerators(table)) == 1 + 1 + 2 + 4 + 8
    assert len(memory_table.pipelined_ratios(table)) == 4


def test_half_the_width_is_half_the_activations(table: memory_table.Table1) -> None:
    found = memory_table.assumptions(table)
    assert found["bfloat16"].tolist() == pytest.approx((found["float32"] / 2).tolist())
    grown = found["float32, gradients of parameters too"] > found["float32"]
    assert grown.tolist() == [False] + [True] * 4  # without GPipe, gradients come after the peak


def test_the_next_size_is_the_next_of_the_search(table: memory_table.Table1) -> None:
    own = table["pipeline-8"]
    layers, filters = own.next_size
    assert (layers, filters) == (own.column.layers, own.column.filters + 16)
    assert own.next_gb() == pytest.approx(own.held["total"].max() * filters / (filters - 16))


def test_each_column_has_four_findings_and_the_setup_is_the_papers(
    table: memory_table.Table1, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_table, "naive_convolutions_gb", lambda _: (2.0, 1.0))
    found = {each.claim: each for each in memory_table.findings(table, "a.svg")}
    assert len(found) == 4 * len(COLUMNS)
    assert found["gpipe-table1-pipeline-2-params"].value == table["pipeline-2"].parameters
    total, step = found["gpipe-table1-naive-1-activation-memory"].value
    assert total == table["naive-1"].activation_gb
    assert step < 0
    assert [each.value for each in memory_table.setup_findings()] == [True, True, 12]
