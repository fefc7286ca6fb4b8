import pytest

from pipekit import Profile
from pipekit.papers.gpipe.timelines import imbalance
from pipekit.profiling import LayerProfile


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_the_formula_is_the_simulated_time_of_unequal_phases(recompute: str) -> None:
    times = [(1, 5), (2, 1), (4, 3), (1, 2), (3, 2), (2, 4)]
    layers = tuple(LayerProfile("layer", f, b, 0, 0) for f, b in times)
    profile = Profile(layers, input_bytes=0, provenance={"label": "exact"})
    for stages in (2, 3, 6):
        row = imbalance.imbalance(profile, stages, 8, recompute)  # type: ignore[arg-type]
        assert row["loss (formula)"] == pytest.approx(row["loss (simulated)"], abs=1e-9)
        assert row["loss (simulated)"] != pytest.approx(0)


def test_equal_stages_lose_nothing() -> None:
    row = imbalance.imbalance(Profile.uniform(8), 4, 8, "never")
    assert row["max / mean stage time"] == 1
    assert row["loss (simulated)"] == pytest.approx(0)
