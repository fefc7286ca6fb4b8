"""simumax: kernels that all reach their peak take a model's FLOPs, counted here by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.published.sets.simumax import SimumaxRow
from experiments.published.sets.simumax_kernels import system
from pipekit.performance.constants import Constants

ROW = SimumaxRow("made", 1, 1, 1, 1, "llama3-70b", 2, 1, 1, 4, 4096)
FULL = Constants(1.0, 0.0)
PEAK = 2250e12


@pytest.fixture(autouse=True)
def perfect_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products reach the peak; memory and links take no time."""
    products = {
        f"b=1, m=1, k=1, n=1, layout={layout}, out_dtype=bf16": 1.0 for layout in ("TN", "NN", "NT")
    }
    grouped = {
        f"ng=1, M=1, N=1, K=1, stage={stage}, grad=x": 1.0
        for stage in ("fwd", "bwd_grad_act", "bwd_grad_w")
    }
    scores = {"batch=1, seq_len=1, head_num=1, kv_head_num=1, qk_head_dim=1, v_head_dim=1": 1.0}
    ops = {"matmul": products, "group_matmul": grouped, "sdp_fwd": scores, "sdp_bwd": scores}
    free = {"efficient_factor": 1e12}
    links = {"scale": 1, "offset": -1, "latency_us": 0, **free}
    described = {
        "accelerator": {
            "op": {name: {"accurate_efficient_factor": table} for name, table in ops.items()},
            "bandwidth": dict.fromkeys(
                ("default", "permute_fwd", "permute_bwd", "ce_fusion"), free
            ),
        },
        "networks": {
            "high_intra_node": {
                "op": {
                    **dict.fromkeys(("all_gather", "reduce_scatter", "all2all"), links),
                    "p2p": {**links, "offset": 0},
                }
            }
        },
    }
    folder = tmp_path / "simumax"
    folder.mkdir()
    (folder / "b200_system.json").write_text(json.dumps(described))
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path))


def seconds(row: SimumaxRow, constants: Constants = FULL) -> float:
    found = row.predict(constants).step_s
    assert found is not None
    return found


def test_a_dense_model_takes_its_flops() -> None:
    block = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    products = 6 * 4096 * (2 * block + 128256 * 8192)
    scores = 2 * 3.5 * 4 * 4096**2 * 8192  # forward once, backward 2.5 times; the whole square
    assert seconds(ROW) == pytest.approx(4 * (products + scores) / PEAK, rel=1e-6)


def test_tensor_parallel_ranks_share_it() -> None:
    assert seconds(replace(ROW, tp=8)) == pytest.approx(seconds(ROW) / 8, rel=1e-6)


def test_two_stages_have_a_bubble() -> None:
    halves = seconds(replace(ROW, layers=4, pp=2, microbatches=64)) / 64
    whole = seconds(replace(ROW, layers=4, microbatches=64)) / 64
    assert whole / 2 < halves < whole


def test_late_kernels_and_experts_cost_the_host() -> None:
    late = Constants(1.0, 1e-3)
    assert seconds(ROW, late) - seconds(ROW) == pytest.approx(4 * 2 * 20 * 1e-3)
    experts = replace(ROW, model="deepseekv2", dp=8, ep=8)
    host = 2 * 20 + 160 / 8 * 6
    assert seconds(experts, late) - seconds(experts) == pytest.approx(4 * host * 1e-3)


def test_shares_are_of_the_nearest_size() -> None:
    found = system()
    assert found is not None
    found.products["TN"] = {(1, 1, 1): 1.0, (64, 64, 64): 0.5}
    small, large = found.linear(2, 2, 2), found.linear(65, 65, 65)
    assert large.forward_s / small.forward_s == pytest.approx(2 * (65 / 2) ** 3)


def test_other_published_models_are_known_and_unknown_ones_refused_with_the_closest() -> None:
    assert seconds(replace(ROW, model="llama3-8b")) < seconds(ROW)
    assert seconds(replace(ROW, model="mixtral-8x7b")) < seconds(ROW)
    refused = replace(ROW, model="llama3-450b").predicted(lambda _: FULL)
    assert (refused.step_s, refused.basis[-13:]) == (None, "llama3-405b'?")
    refused = replace(ROW, gpu_type="H100").predicted(lambda _: FULL)
    assert refused.basis == "gpu_type must be one of B200, not 'H100'"
