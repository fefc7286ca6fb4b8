import pytest

from pipekit.papers.gpipe import memory_figures, memory_search
from pipekit.papers.gpipe.memory import COLUMNS, GB, Column, Setting, held
from pipekit.papers.gpipe.memory_search import largest, next_size, search
from pipekit.profiling import LayerProfile, Profile


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 9])
def test_the_largest_that_fits_is_found(limit: int) -> None:
    asked: list[int] = []

    def fits(candidate: int) -> bool:
        asked.append(candidate)
        return candidate <= limit

    assert largest([1, 2, 3, 4], fits) == (min(limit, 4) or None)
    assert len(asked) <= 3


def _square(layers: int, filters: int) -> Profile:
    """Return equal layers of F^2 parameters, each of which saves F^2 / 1000 GB."""
    saved = filters**2 * GB / 1000
    layer = LayerProfile("layer", 1, 2, flops=1, parameter_bytes=4 * filters**2, saved_bytes=saved)
    return Profile((layer,) * layers, rows=8)


def test_the_search_finds_the_widest_of_each_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_search, "amoebanet", _square)
    found = search(Setting.of("pipeline-2"), depths=(6, 12, 200))
    # 6 layers: 3 a stage, 3 F^2 / 1000 <= 8 for F <= 51; 12 layers: F <= 36; 200: F <= 8.
    assert found[["layers", "filters"]].to_numpy().tolist() == [[6, 48], [12, 32]]
    assert found["parameters"].tolist() == [6 * 48**2, 12 * 32**2]
    assert (found["fullest"] <= 8).all()
    assert next_size(6, 208) == (6, 224)


def test_figures_show_every_accelerator_beside_the_paper() -> None:
    boards = {name: held(_square(16, 48), Column.of(name).setting) for name in COLUMNS}
    figure = memory_figures.accelerators(boards, "All fit", "simulated")
    assert figure.layout.title.text == "All fit (simulated)"
    parameters, activations, budget, paper = figure.data
    assert len(parameters.x) == 1 + 1 + 2 + 4 + 8
    assert [*activations.base] == [*parameters.x]
    assert set(budget.x) == {8}
    assert paper.x[-1] == pytest.approx((24.62 + 26.24) / 8)
    rows = memory_figures.largest_networks({"ours": {"naive-1": 1e6, "pipeline-4": 2e9}})
    assert rows[rows["networks"] == "ours"].to_numpy().tolist() == [[4, 2, "ours"]]
    assert rows[rows["networks"] == "paper"]["parameters"].tolist() == [0.318, 0.542, 1.05, 1.8]
