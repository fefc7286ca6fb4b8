"""Speed: simulated seconds and bytes of all methods, with updates of equally many samples."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.staleness import explorer, speed
from experiments.staleness.methods import BSP, METHODS
from experiments.staleness.speed import Machines
from pipekit import Profile
from pipekit.profiling import LayerProfile

LAYER = LayerProfile("layer", 1.0, 2.0, parameter_bytes=4e9, saved_bytes=0.0, output_bytes=0.0)
EQUAL = Profile((LAYER,) * 4, input_bytes=0.0)
PIPELINED = [name for name in METHODS if name != BSP]
MACHINES = Machines(stages=4, rows=8, microbatches=8, recompute=False, optimizer_states=2)


@pytest.fixture(autouse=True)
def equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_one_row", lambda model, cluster: EQUAL)
    monkeypatch.setattr(speed, "point", speed.point.__wrapped__)  # keeps nothing


def test_a_flush_costs_its_bubble_and_all_others_none() -> None:
    seconds = {name: speed.point(MACHINES, name).seconds for name in PIPELINED}
    busy = 8 * 3.0
    for name, taken in seconds.items():
        # (n - 1) passes of a microbatch more: PipeDream-Flush, PipeDream-2BW's section 3.2
        assert taken == pytest.approx(busy + 3 * 3.0 if name == "flush" else busy), name


def test_the_worst_worker_has_its_versions_and_what_a_mitigation_keeps() -> None:
    weights = {name: speed.point(MACHINES, name).memory_bytes / 4e9 for name in PIPELINED}
    rest = 1 + 2  # a gradient and Adam's two states
    assert weights["flush"] == pytest.approx(1 + rest)
    assert weights["2bw"] == weights["2bw-sync-first"] == pytest.approx(2 + rest)
    assert weights["pipedream"] == pytest.approx(4 + rest)
    assert weights["no-stashing"] == weights["paci"] == pytest.approx(1 + rest)
    assert weights["spectrain"] > weights["no-stashing"]
    assert weights["gap-aware"] > weights["pipedream"]


def test_the_explorer_shows_what_fits_and_says_what_does_not(repository: Path) -> None:
    ends = pd.read_csv(repository / "results/reference/staleness/summary.csv")
    view = explorer.see(ends, rows=8, memory_gib=24)
    assert "2bw" in view.text
    assert "Not within 24 GiB: " in view.text
    assert view.table is not None
    assert {*view.table["fits"]} == {"yes", "no"}
    assert explorer.see(ends, rows=8, memory_gib=4).text == "Nothing fits into 4 GiB (simulated)."
    with pytest.raises(ValueError, match="no training of gpt-small with none on 4 stages"):
        explorer.see(ends, rows=8, proxy="gpt-small", optimizer="none")
    controls = explorer.controls(ends)
    assert {*controls} == {*explorer.see.__annotations__} - {"table", "return"}
