"""Table 1's columns beside the memory model, on a small network in place of AmoebaNet-D."""

import pytest

from pipekit.papers.gpipe.memory import table1
from pipekit.papers.gpipe.memory.accelerators import GB
from pipekit.papers.gpipe.memory.table1 import COLUMNS, STEP
from pipekit.profiling import LayerProfile, Profile


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> table1.Table1:
    """Return Table 1, as if every network had 16 layers of F MB of weights and of activations."""

    def network(layers: int, filters: int) -> Profile:
        size = filters * 1e6
        layer = LayerProfile("layer", 1, 2, flops=1, parameter_bytes=4 * size, saved_bytes=size)
        return Profile((layer,) * 16, rows=8)

    monkeypatch.setattr(table1, "amoebanet", network)
    return table1.table1()


def test_every_column_has_what_the_paper_prints_and_what_the_model_counts(
    table: table1.Table1,
) -> None:
    assert list(table) == list(COLUMNS)
    naive = table1.frame(table)["naive-1"]
    filters = table["naive-1"].filters
    assert naive["(L, F)"] == f"(6, {filters})"
    assert naive["parameters (millions), exact"] == 16 * filters
    assert naive["of activations (GB), simulated"] == pytest.approx(16 * 16 * filters * 1e6 / GB)


def test_the_figure_shows_every_accelerator_beside_the_paper(table: table1.Table1) -> None:
    drawn, rows = table1.figure(table)
    assert len(rows) == 1 + 1 + 2 + 4 + 8
    assert drawn.layout.title.text.endswith("times the paper's (simulated, paper)")
    parameters, total, paper, budget = drawn.data
    assert [*parameters.x] == rows["parameters"].tolist()
    assert [*total.x] == rows["total"].tolist()
    assert set(budget.x) == {8}
    assert paper.x[-1] == pytest.approx((24.62 + 26.24) / 8)


def test_half_the_width_is_half_the_activations(table: table1.Table1) -> None:
    found = table1.assumptions(table)
    assert found["bfloat16"].tolist() == pytest.approx((found["float32"] / 2).tolist())
    grown = found["float32, gradients of parameters too"] > found["float32"]
    assert grown.tolist() == [False] + [True] * 4  # without GPipe, gradients come after the peak


def test_the_next_size_is_the_next_of_the_search(table: table1.Table1) -> None:
    own = table["pipeline-8"]
    wider = (own.filters + STEP) / own.filters
    assert own.next_gb() == pytest.approx(own.held["total"].max() * wider)


def test_each_column_has_four_findings_and_the_setup_is_the_papers(
    table: table1.Table1, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table1, "convolution_gb", lambda _: (2.0, 1.0))
    found = {each.claim: each for each in table1.findings(table, "a.svg")}
    assert len(found) == 4 * len(COLUMNS)
    assert found["gpipe-table1-pipeline-2-params"].value == table["pipeline-2"].counted
    total, step = found["gpipe-table1-naive-1-activation-memory"].value
    assert total == table["naive-1"].own_activation_gb
    assert step < 0
    (compiled,) = found["gpipe-table1-naive-1-activation-memory"].causes
    assert compiled.value[0] == 1.0, "GB of convolutions' outputs in bfloat16"
    assert [each.value for each in table1.setup_findings()] == [True, True, 12]
