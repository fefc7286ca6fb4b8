import pytest

from experiments.pipedream.workflow import complexity as checks


def test_the_candidates_counted_are_those_of_the_loops() -> None:
    # For each M' <= M and each share of the first stage below M', a matrix of N-1 x N-1: a first
    # stage has a layer, and so has what is behind it.
    assert checks.iterations(5, [4]) == 16 * (1 + 2 + 3)
    assert checks.iterations(6, [1]) == 0
    sizes = [8, 16, 32]
    assert checks.slope([n - 1 for n in sizes], [checks.iterations(n, [3]) for n in sizes]) == (
        pytest.approx(2)
    )
    assert checks.slope(sizes, [n**3 for n in sizes]) == pytest.approx(3)


def test_the_finding_is_n_squared_m_squared_on_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SIZES", [8, 16, 32])
    counts = checks.counts()
    share, layers, machines = checks.finding(counts).value
    assert share <= 0.5
    assert 2 < layers < 2.2, "exactly 2 in N-1"
    assert 1.9 < machines < 2.3
    assert "the slope in N is 3" in checks.finding(counts).note or layers < 2.5
    assert checks.counts_frame(counts)["candidates"].tolist()[:3] == counts["N layers, 8 machines"]
