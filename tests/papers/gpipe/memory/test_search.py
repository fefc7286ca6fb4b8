import pandas as pd
import pytest

from pipekit.papers.gpipe.memory import search as searches
from pipekit.papers.gpipe.memory.accelerators import GB
from pipekit.papers.gpipe.memory.search import search
from pipekit.papers.gpipe.memory.table1 import COLUMNS, table1
from pipekit.papers.gpipe.scenarios import named
from pipekit.profiling import LayerProfile, Profile


def _square(layers: int, filters: int) -> Profile:
    """Return equal layers of F^2 parameters, each of which saves F^2 / 1000 GB."""
    saved = filters**2 * GB / 1000
    layer = LayerProfile("layer", 1, 2, flops=1, parameter_bytes=4 * filters**2, saved_bytes=saved)
    return Profile((layer,) * layers, rows=8)


def test_the_search_finds_the_widest_of_each_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "amoebanet", _square)
    found = search(named("pipeline-2"), depths=(6, 12, 200))
    # 6 layers: 3 a stage, 3 F^2 / 1000 <= 8 for F <= 51; 12 layers: F <= 36; 200: F <= 8.
    assert found[["layers", "filters"]].to_numpy().tolist() == [[6, 48], [12, 32]]
    assert found["parameters"].tolist() == [6 * 48**2, 12 * 32**2]
    assert (found["fullest"] <= 8).all()


@pytest.mark.long
def test_the_searches_are_told_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame(
        [(6, 16, 2e9, 7.5)], columns=["layers", "filters", "parameters", "fullest"]
    )
    smaller = frame.assign(parameters=5e8)
    by_column = dict.fromkeys(COLUMNS, frame) | {"pipeline-1": smaller, "naive-1": smaller}
    found: searches.Found = {"computation": by_column, "memory": by_column}
    table = table1()
    assert searches.growth(found, "memory") == [1, 4, 4, 4]
    _, curves = searches.figure(found, table)
    ours = curves[curves["networks"] == "cut by memory (simulated)"]
    assert ours["parameters (10⁹)"].tolist() == [0.5, 2, 2, 2]
    assert ours["accelerators"].tolist() == [1, 2, 4, 8]
    assert curves.loc[curves["networks"] == "paper", "parameters (10⁹)"].tolist() == [
        0.318,
        0.542,
        1.05,
        1.8,
    ]
    assert searches.answers(found, table)["pipeline-8"].tolist() == [
        "(24, 512): 1,800M",
        "(6, 16): 2,000M",
        "(6, 16): 2,000M",
    ]
    monkeypatch.setattr(searches, "naive_cause", lambda _: "why")
    values = {f.claim: f.value for f in searches.findings(found, table, "a.svg")}
    counts = {name: own.counted for name, own in table.items()}
    alone, one, eight = (counts[name] for name in ("naive-1", "pipeline-1", "pipeline-8"))
    assert values["gpipe-abstract-25x-larger"] == eight / alone
    assert values["gpipe-sec41-3-8x-single"] == one / alone
    assert values["gpipe-sec41-5-6x"] == [pytest.approx(1.8e9 / 318e6), eight / one]
    assert values["gpipe-sec5-2-billion"] == 2e9
