"""sailor: a made-up folder of profiles, sizes and networks gives steps that can be added up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.published.sets.sailor import SailorRow
from pipekit.performance.constants import Constants, fitted

LAYERS = 26
PLAN = {
    "layers_per_stage": [[0] * 12, [0] * 14],
    "tmp_per_stage": [[[[["GH-96", 4, "z"]], 4]], [[[["GH-96", 4, "z"]], 4]]],
}
ROW = SailorRow("made", 4, 1, 2, 8, "plan_config_N2_D1", "clariden", "OPT-350", 1, json.dumps(PLAN))
LOSSLESS = Constants(1.0, 0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A layer takes 1 ms forward and 2 ms backward for 8 samples, a network gives 1 GB/s."""
    where = tmp_path / "sailor"
    where.mkdir()
    sizes = {"params_floats": 0, "act_output_bytes": 1e9 / 8, "act_mem_bytes": 1e8}
    pd.DataFrame(
        {"model": "OPT-350", "tp": tp, "layer": layer, **sizes}
        for tp in (1, 4)
        for layer in range(LAYERS)
    ).to_csv(where / "layer_sizes.csv", index=False)
    pd.DataFrame(
        {
            "source": "validation",
            "model": "OPT-350",
            "gpu": "GH-96",
            "micro_batch_samples": samples,
            "tp": 4,
            "layer": layer,
            "forward_s": seconds,
            "backward_s": 2 * seconds,
        }
        for samples, seconds in ((1, 1e-3), (8, 1e-3))
        for layer in range(LAYERS)
    ).to_csv(where / "layer_profiles.csv", index=False)
    ends = {"sender_gpu": "GH-96", "sender_gpus": 4, "receiver_gpu": "GH-96", "receiver_gpus": 4}
    law = {"c2": 0, "c1": 0, "c0": 1, "peak_bytes_per_s": 1e12}
    pd.DataFrame([{"file": "f", "where": "inter_node", **ends, **law}]).to_csv(
        where / "network_fits.csv", index=False
    )
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path))
    return where


def seconds(row: SailorRow, constants: Constants = LOSSLESS) -> float:
    found = row.predict(constants).step_s
    assert found is not None
    return found


def test_one_microbatch_passes_all_layers_and_waits_at_both_ends_of_each_transfer() -> None:
    # 26 layers of 3 ms; an activation of 1 GB and its gradient hold both nodes for a second each.
    assert seconds(ROW) == pytest.approx(26 * 3e-3 + 4 * 1.0)


def test_a_share_of_the_network_makes_transfers_longer() -> None:
    slower = seconds(ROW, Constants(0.25, 0.0)) - seconds(ROW)
    assert slower == pytest.approx(4 * 3.0)


def test_a_wait_of_the_profile_is_taken_off_but_never_the_device_s_own_time() -> None:
    one = replace(ROW, micro_batch_samples=1)
    device = 1e-3 / 8  # of the sample, by the largest microbatch
    whole, shorter, least = (seconds(one, Constants(1.0, waits)) for waits in (0.0, 0.5e-3, 1.0))
    assert whole - shorter == pytest.approx(26 * 2 * 0.5e-3)
    assert whole - least == pytest.approx(26 * (3e-3 - 3 * device))


def test_a_batch_in_flight_on_each_stage_takes_memory() -> None:
    few, more = (
        replace(ROW, microbatches_per_replica=m).predict(LOSSLESS).memory_bytes or 0.0
        for m in (1, 8)
    )
    assert few < more < 2 * few  # two in flight on the first stage, one on the last


def test_without_inputs_the_data_sheet_predicts(folder: Path) -> None:
    (folder / "layer_profiles.csv").unlink()
    found = ROW.predict(LOSSLESS)
    assert found.step_s
    assert found.basis.startswith("data sheet, fitted constants; needs the set's layer profiles")
    widths = fitted().half_widths["sailor"]
    assert widths[found.kind or ""] > 5 * widths["all"]


def elsewhere(gpu: str) -> str:
    return json.dumps(PLAN).replace("GH-96", gpu)


@pytest.mark.parametrize(
    ("change", "is_predicted", "said"),
    [
        ({"plan_json": elsewhere("V100-16")}, True, "no profile of OPT-350 on V100-16"),
        ({"plan_json": elsewhere("GH-69")}, False, "did you mean 'GH-96'?"),
        ({"plan_json": "{}"}, False, "plan_json is no plan"),
        ({"model": "OPT-7000"}, False, "model must be one of"),
    ],
)
def test_what_was_not_profiled_is_predicted_by_data_sheets_if_it_is_known(
    change: dict[str, Any], is_predicted: bool, said: str
) -> None:
    found = replace(ROW, **change).predicted(lambda _: LOSSLESS)
    assert bool(found.step_s) == is_predicted
    assert said in found.basis
