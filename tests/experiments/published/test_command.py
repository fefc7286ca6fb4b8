"""The command predicts each row of a file, or says why not, and refuses files that are none."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from experiments.published.__main__ import main
from experiments.published.published_set import letters
from experiments.published.sets import SETS
from pipekit.performance.constants import fitted

GPT: dict[str, object] = {"row_id": "made0", "gpus": 8, "tp": 2, "dp": 2, "pp": 2}
GPT |= {"global_batch_samples": 16, "micro_batch_samples": 1, "seq_tokens": 1024}
GPT |= {"hidden_size": 2048, "attention_heads": 16, "layers": 24}


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPEKIT_MEASURED", raising=False)


def predicted(folder: Path, name: str, *rows: dict[str, object]) -> pd.DataFrame:
    """Return what the command writes for a file of rows."""
    paths = folder / "configurations.csv", folder / "out.csv"
    text = pd.DataFrame(rows).to_csv(index=False)
    paths[0].write_text(text, "utf-8-sig")  # as Excel writes it
    main([name, *map(str, paths)])
    return pd.read_csv(paths[1])


def test_a_row_is_predicted_with_its_interval_and_what_it_rests_on(tmp_path: Path) -> None:
    wide = {**GPT, "row_id": "made1", "tp": 8, "dp": 1, "pp": 1}
    found = predicted(tmp_path, "vtrain_single_node", GPT, wide)
    assert found["row_id"].tolist() == ["made0", "made1"]
    assert (found["step_low_s"] < found["step_s"]).all()
    assert (found["step_s"] < found["step_high_s"]).all()
    width = found["step_high_s"] / found["step_s"]
    assert width[0] < width[1]  # tp 8 is predicted less well
    assert set(found["basis"]) == {"data sheet, fitted constants"}


def test_a_row_that_cannot_be_predicted_has_the_reason(tmp_path: Path) -> None:
    odd = {"tp": 3}, {"tp": 3, "gpus": 12}, {"dp": 32, "gpus": 128}, {"pp": 32, "gpus": 128}
    rows = [GPT, *({**GPT, **change} for change in odd)]
    found = predicted(tmp_path, "vtrain_multi_node", *rows)
    assert found["step_s"].notna().tolist() == [True, *[False] * 4]
    says = ["tp 3 x dp 2 x pp 2 is 12, but gpus is 8", "tp 3 does not divide the 16 heads of GPT"]
    says += ["the next larger batch is 32", "24 layers are too few for 32 stages"]
    assert all(map(str.endswith, found["basis"][1:], says))


def test_a_row_that_lacks_a_number_has_the_reason_and_others_their_seconds(tmp_path: Path) -> None:
    found = predicted(tmp_path, "vtrain_multi_node", {**GPT, "layers": None}, GPT)
    assert found["step_s"].notna().tolist() == [False, True]
    assert found["basis"][0] == "layers is missing"


def test_a_file_of_rows_that_cannot_be_predicted_has_all_columns(tmp_path: Path) -> None:
    row = submission(gpu_type="own", precision="fp8")
    found = predicted(tmp_path, "mlperf_405b", row)
    assert found.columns.tolist() == ["row_id", "step_s", "step_low_s", "step_high_s", "basis"]
    assert found["basis"][0].startswith("gpu_type must be one of")


@pytest.mark.parametrize(
    ("change", "is_predicted", "said"),
    [
        ({"model": "llama3-9b"}, False, "did you mean 'llama3-8b'"),
        (
            {"model": "LLAMA3.3_70B"},
            True,
            "model LLAMA3.3_70B is unknown and taken for llama3.1-70b",
        ),
        ({"system": "DGX-B250"}, False, "system must be one of"),
        ({"system": "DGX-B2000"}, False, "system must be one of"),
        ({"model": "mixtral_8x7B", "ep": 16}, False, "ep 16 does not divide the 8 experts"),
        ({"precision": "TF32"}, False, "precision is 'TF32': give BF16, FP16, FP8 or FP4"),
        ({"system": "DGX-H100", "precision": "NVFP4"}, False, "dtype on H100 must be one of"),
        ({"release": "99.01", "precision": "FP8 of next year"}, True, ""),
    ],
)
def test_what_nobody_knows_is_refused_unless_there_is_a_model_of_its_size(
    tmp_path: Path, change: dict[str, object], is_predicted: bool, said: str
) -> None:
    row: dict[str, object] = dict.fromkeys(("vp", "cp", "tp", "ep", "fsdp"), 1)
    row |= {"release": "26.04", "task": "pre-training", "variant": "", "gpus": 64, "pp": 4}
    row |= {"global_batch_samples": 256, "micro_batch_samples": 1, "seq_tokens": 4096}
    row |= {"model": "LLAMA3_70B", "system": "DGX-B200", "precision": "FP8"}
    found = predicted(tmp_path, "megatron_bridge", {**row, "row_id": "new", **change})
    assert pd.notna(found["step_s"][0]) == is_predicted
    assert said in found["basis"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": "nan"}, "row made0: layers is nan: give a number"),
        ({"layers": "many"}, "row made0: layers is 'many'"),
    ],
)
def test_values_that_are_no_numbers_are_refused_with_the_row(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        predicted(tmp_path, "vtrain_single_node", {**GPT, **change})
    assert said in str(refused.value)


def test_missing_columns_sets_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="lacks the columns layers of vtrain_single_node"):
        predicted(tmp_path, "vtrain_single_node", {k: v for k, v in GPT.items() if k != "layers"})
    with pytest.raises(SystemExit, match="did you mean 'vtrain_multi_node'"):
        predicted(tmp_path, "vtrain_multinode", GPT)
    with pytest.raises(SystemExit, match="there is no file"):
        main(["vtrain_multi_node", str(tmp_path / "none.csv"), str(tmp_path / "out.csv")])


def submission(**changes: object) -> dict[str, object]:
    row = {"row_id": "made", "gpu_type": "H100-SXM5-80GB", "gpus": 2048, "tp": 8, "pp": 8, "vp": 8}
    row |= {"cp": 2, "micro_batch_samples": 1, "global_batch_samples": 1024, "seq_tokens": 8192}
    return row | {"precision": "fp8"} | changes


def test_submissions_of_any_gpu_and_of_both_models_are_predicted(tmp_path: Path) -> None:
    kinds = ["H100-SXM5-80GB", "H200", "GB300", "NVIDIA B200-SXM-180GB", "MI355X"]
    rows = [submission(row_id=kind, gpu_type=kind) for kind in kinds]
    rows += [submission(gpu_type=f"A100-SXM4-{gb}GB", precision="bf16") for gb in (40, 80)]
    seconds = predicted(tmp_path, "mlperf_405b", *rows)["step_s"]
    assert seconds.notna().all()
    assert seconds[6] < seconds[5]  # its memory is faster
    assert seconds[2] < seconds[0]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)  # the same chip, more memory
    gpt3 = submission(pp=8, vp=6, cp=1, gpus=512, global_batch_samples=2048, seq_tokens=2048)
    (step,) = predicted(tmp_path, "mlperf_gpt3", gpt3)["step_s"]
    flops = 6 * 175e9 * 2048 * 2048 / 512
    assert 0.25 < flops / step / 1979e12 < 0.55  # of the peak


def test_a_submission_has_its_models_layers_and_its_batchs_factors(tmp_path: Path) -> None:
    changes = {"layers": 126}, {"layers": 96}, {"dp": 15}, {"microbatches_per_step": 63}
    rows = (submission(**each) for each in changes)
    found = predicted(tmp_path, "mlperf_405b", submission(), *rows)
    assert found["step_s"].notna().tolist() == [True, True, False, False, False]
    assert found["basis"][2] == "layers is 96, and 126 by model and batch"
    assert found["basis"][3] == "tp 8 x pp 8 x cp 2 x dp 15 is 1920, but gpus is 2048"
    assert found["basis"][4] == "microbatches_per_step is 63, and 64 by model and batch"


def test_neither_spelling_nor_blanks_nor_degrees_of_none_matter(tmp_path: Path) -> None:
    known = submission(gpu_type="GB200", vp=1)
    other = {"gpu_type": "gb200"}, {"gpu_type": " NVIDIA GB 200 ", "cp": " 2"}, {"vp": 0}
    found = predicted(tmp_path, "mlperf_405b", known, *(known | each for each in other))
    assert len({*found["step_s"]}) == 1
    assert letters("Llama 8.0B") == letters("llama-8b") != letters("llama-80b")


def test_rows_that_constants_were_fitted_on_are_named() -> None:
    fits = fitted()
    assert all(fit.fitted_on for fit in fits.machines.values())
    assert {name for fit in fits.machines.values() for name in fit.fitted_on} <= {*SETS}
    assert "mlperf_405b" not in fits.machines["Megatron-Core on H100"].fitted_on
    assert SETS["mlperf_405b"].overheads == ()


def test_no_measured_value_is_committed(repository: Path) -> None:
    with (repository / "results/reference/published/predictions.csv").open() as lines:
        columns = next(csv.reader(lines))
    assert "step_s" in columns
    assert not {"measured", "measured_s", "error"} & {*columns}
