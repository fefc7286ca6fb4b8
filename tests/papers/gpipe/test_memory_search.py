import pandas as pd
import pytest

from pipekit.papers.gpipe import memory_figures, memory_search
from pipekit.papers.gpipe.memory import COLUMNS, GB, Column, held
from pipekit.papers.gpipe.memory_search import next_size, search
from pipekit.papers.gpipe.scenarios import named
from pipekit.profiling import LayerProfile, Profile


def _square(layers: int, filters: int) -> Profile:
    """Return equal layers of F^2 parameters, each of which saves F^2 / 1000 GB."""
    saved = filters**2 * GB / 1000
    layer = LayerProfile("layer", 1, 2, flops=1, parameter_bytes=4 * filters**2, saved_bytes=saved)
    return Profile((layer,) * layers, rows=8)


def test_the_search_finds_the_widest_of_each_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_search, "amoebanet", _square)
    found = search(named("pipeline-2"), depths=(6, 12, 200))
    # 6 layers: 3 a stage, 3 F^2 / 1000 <= 8 for F <= 51; 12 layers: F <= 36; 200: F <= 8.
    assert found[["layers", "filters"]].to_numpy().tolist() == [[6, 48], [12, 32]]
    assert found["parameters"].tolist() == [6 * 48**2, 12 * 32**2]
    assert (found["fullest"] <= 8).all()
    assert next_size(6, 208) == (6, 224)


def test_the_searches_are_told_beside_the_paper() -> None:
    frame = pd.DataFrame(
        [(6, 16, 2e9, 7.5)], columns=["layers", "filters", "parameters", "fullest"]
    )
    smaller = frame.assign(parameters=5e8)
    by_column = dict.fromkeys(COLUMNS, frame) | {"pipeline-1": smaller, "naive-1": smaller}
    found: memory_search.Found = {"computation": by_column, "memory": by_column}
    assert memory_search.growth(found, "memory") == [1, 4, 4, 4]
    curves = memory_search.curves(found)
    ours = curves[curves["networks"] == "cut by memory (simulated)"]
    assert ours["parameters"].tolist() == [0.5, 2, 2, 2]
    assert ours["accelerators"].tolist() == [1, 2, 4, 8]
    assert curves.loc[curves["networks"] == "paper", "parameters"].tolist() == [
        0.318,
        0.542,
        1.05,
        1.8,
    ]
    assert memory_search.answers(found)["pipeline-8"].tolist() == [
        "(24, 512): 1,800M",
        "(6, 16): 2,000M",
        "(6, 16): 2,000M",
    ]
    counts = {"pipeline-8": 100, "pipeline-1": 20, "naive-1": 4}
    values = {f.claim: f.value for f in memory_search.findings(found, counts, "why")}
    assert values["gpipe-abstract-25x-larger"] == 25
    assert values["gpipe-sec41-3-8x-single"] == 5
    assert values["gpipe-sec41-5-6x"] == [pytest.approx(1.8e9 / 318e6), 5]
    assert values["gpipe-sec5-2-billion"] == 2e9


def test_the_figure_shows_every_accelerator_beside_the_paper() -> None:
    boards = {name: held(_square(16, 48), Column.of(name).scenario) for name in COLUMNS}
    rows = pd.concat(boards, names=["column", "accelerator"]).reset_index()
    figure = memory_figures.accelerators(rows, "All fit", "simulated")
    assert figure.layout.title.text == "All fit (simulated)"
    parameters, activations, budget, paper = figure.data
    assert len(parameters.x) == 1 + 1 + 2 + 4 + 8
    assert [*activations.base] == [*parameters.x]
    assert set(budget.x) == {8}
    assert paper.x[-1] == pytest.approx((24.62 + 26.24) / 8)
