"""simumax: a node whose all-gathers follow a law, and ranks that wait for them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.published.sets.simumax import SimumaxRow
from pipekit.performance.constants import Constants

ROW = SimumaxRow("made", 1, 1, 1, 1, "llama3-70b", 2, 1, 1, 4, 4096)
FULL = Constants(1.0, 0.0)


def node(folder: Path, **law: float) -> None:
    """Describe a node whose all-gathers have no latency and the sheet's bandwidth, or ``law``."""
    free = {"efficient_factor": 1.0, "fixed_latency_us": 0.0, "latency_us": 0.0}
    described = {"networks": {"high_intra_node": {"op": {"all_gather": free | law}}}}
    (folder / "simumax").mkdir(parents=True)
    (folder / "simumax" / "b200_system.json").write_text(json.dumps(described))


@pytest.fixture(autouse=True)
def perfect_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node(tmp_path)
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path))


def seconds(row: SimumaxRow, constants: Constants = FULL) -> float:
    found = row.predict(constants).step_s
    assert found is not None
    return found


def test_ranks_wait_for_two_collectives_forward_and_three_backward_of_each_sublayer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(ROW, tp=8)
    free, found = seconds(row), row.predict(FULL)
    assert found.basis == "data sheet, fitted constants, timed collectives"
    node(tmp_path / "late", fixed_latency_us=300.0, latency_us=100.0)
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path / "late"))
    waits = 4 * (2 * 2 * 5 + 3)  # microbatches, layers, sublayers; and the gradient of the head
    assert seconds(row) - free == pytest.approx(waits * (300 + 7 * 100) * 1e-6, rel=1e-6)
    node(tmp_path / "slow", efficient_factor=0.5)
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path / "slow"))
    one = 7 / 8 * 2 * 4096 * 8192 / 900e9
    assert seconds(row) - free == pytest.approx(waits * one, rel=1e-6)


def test_without_the_file_data_sheets_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = seconds(ROW)
    monkeypatch.delenv("PIPEKIT_MEASURED")
    assert ROW.predict(FULL).basis == "data sheet, fitted constants"
    assert seconds(ROW) == alone  # one rank has no links


def test_two_stages_have_a_bubble() -> None:
    halves = seconds(replace(ROW, layers=4, pp=2, microbatches=64)) / 64
    whole = seconds(replace(ROW, layers=4, microbatches=64)) / 64
    assert whole / 2 < halves < whole


def test_other_published_models_are_known_and_unknown_ones_refused_with_the_closest() -> None:
    assert seconds(replace(ROW, model="llama3-8b")) < seconds(ROW)
    assert seconds(replace(ROW, model="mixtral-8x7b")) < seconds(ROW)
    refused = replace(ROW, model="llama3-450b").predicted(lambda _: FULL)
    assert (refused.step_s, refused.basis[-13:]) == (None, "llama3-405b'?")
    refused = replace(ROW, gpu_type="H100").predicted(lambda _: FULL)
    assert refused.basis == "gpu_type must be one of B200, not 'H100'"
