"""Gains over Flush: costs of a block become those of stages, and rows become tables."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.zoo import gains, summary
from experiments.zoo.closed_forms import Setting
from experiments.zoo.comparison import NAMES, schedule
from pipekit.profiling import LayerProfile, Profile
from pipekit.simulation import simulate
from tests.emulation.own_time import own_time

BLOCK = Profile(
    (
        LayerProfile(
            "block", 1e-4, 2e-4, backward_input_s=1e-4, backward_weight_s=1e-4, output_bytes=64
        ),
    ),
    input_bytes=64,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_has_two_blocks_whatever_the_method(name: str) -> None:
    made = schedule(name, Setting(4, 8)).take(1)
    costs, plan = gains.profile_of(BLOCK, made, 4)
    trace = simulate(made, costs, plan)
    busy = trace.frame.assign(s=trace.frame["end_s"] - trace.frame["start_s"])
    assert busy.groupby("worker")["s"].sum().to_list() == pytest.approx([8 * 2 * 3e-4] * 4)


def test_overlapped_passes_are_emulated_as_they_are_simulated() -> None:
    with own_time():
        apart, together = (
            gains.emulated(BLOCK, Setting(2, 6), 1, overlap, ["dualpipe"]).iloc[0]
            for overlap in (None, 0.5)
        )
    assert together["simulated_s"] < 0.9 * apart["simulated_s"]
    for each in (apart, together):
        assert each["emulated_s"] == pytest.approx(each["simulated_s"])


def test_the_tables_are_of_medians(tmp_path: Path) -> None:
    emulated = [
        (name, name, None, 2.0 - 0.5 * (name == "zb-h1"), seconds * (1 - 0.25 * (name == "zb-h1")))
        for name in NAMES
        for seconds in (2.0, 2.2, 9.0)
    ]
    columns = ["name", "method", "overlap", "simulated_s", "emulated_s"]
    pd.DataFrame(emulated, columns=columns).to_csv(tmp_path / "emulated.csv")
    assert set(summary.tables(tmp_path, Setting(4, 12))) == {"methods", "gains"}
    pd.DataFrame({"name": NAMES, "measured_s": 1.0}).to_csv(tmp_path / "trained.csv")
    pairs = {"network": "a", "pair": range(3), "flush": [1.1, 1.2, 1.0], "zb-h1": 1.0}
    pd.DataFrame(pairs).to_csv(tmp_path / "pairs.csv")
    pd.DataFrame([{"network": "a", "flush": 3.0, "zb-h1": 2.0}]).to_csv(tmp_path / "predicted.csv")
    tables = summary.tables(tmp_path, Setting(4, 12))
    row = tables["gains"].set_index("name").loc["zb-h1"]
    assert row["simulated gain, %"] == pytest.approx(100 / 3)
    assert row["emulated gain, %"] == pytest.approx(100 / 3)
    assert row["slowest_s"] == pytest.approx(6.75)
    assert row["emulated over simulated speed-up"] == pytest.approx(1)
    cores = tables["two_cores"].iloc[0]
    assert cores["ZB-H1's gain, % (measured)"] == pytest.approx(10)
    assert cores["ZB-H1's gain, % (simulated)"] == pytest.approx(50)
    assert len(tables["methods"]) == len(NAMES)
