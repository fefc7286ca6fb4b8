"""Layouts ranked for a model, a cluster and a batch; what other programs are told; fitted constants."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pipekit
from pipekit.cli import app
from pipekit.performance import flags
from pipekit.performance.constants import NEW_DEVICE, Constants, Fit, Fits, fitted
from pipekit.performance.devices import described, machine
from pipekit.performance.layout import ParallelLayout, layouts
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.recommend import USABLE, Recommendation, recommend
from pipekit.performance.shapes import Attention, Experts, Shape, llama, shape
from pipekit.performance.training import MEGATRON_CORE, TrainingSetup, training

SMALL = llama("small", 1024, 16, 8, 4096, 12, 32000)
MIXTURE = Shape("mixture", 1024, 32000, (((Attention(16, 8, 64), Experts(8, 2, 2048)), 12),))


@pytest.fixture(scope="module")
def ranked() -> Recommendation:
    found: Recommendation = pipekit.recommend("llama3-70b", "32xH100", 32, seq_tokens=8192)
    return found


def test_the_fastest_comes_first_and_each_way_to_spread_once(ranked: Recommendation) -> None:
    frame = ranked.frame()
    assert frame["step_s"].is_monotonic_increasing
    assert not frame.duplicated(["tp", "cp", "ep", "pp"]).any()
    assert (frame["tp"] * frame["cp"] * frame["pp"] * frame["dp"] == 32).all()
    assert (frame["dp"] * frame["microbatch_samples"] * frame["microbatches"] == 32).all()


def test_all_of_them_fit_and_their_step_is_that_of_the_table(ranked: Recommendation) -> None:
    for each in ranked.candidates:
        assert max(each.peak_bytes) <= USABLE * 79.6 * 2**30
        assert each.step_s == step(each.run).seconds


def test_what_cannot_be_told_apart_is_counted(ranked: Recommendation) -> None:
    best = ranked.candidates[0].step_s * math.exp(ranked.half_width)
    assert ranked.equal == sum(each.step_s <= best for each in ranked.candidates)
    assert f"The first {ranked.equal} cannot be told apart" in str(ranked)
    assert "idle in the pipeline" in str(ranked)


def test_experts_are_spread_only_where_there_are_some() -> None:
    dense, mixture = (recommend(each, "8xH100", 32) for each in (SMALL, MIXTURE))
    assert set(dense.frame()["ep"]) == {1}
    assert set(mixture.frame()["ep"]) == {1, 2, 4, 8}


def test_experts_stay_in_a_rack_and_cross_servers() -> None:
    mixture = replace(MIXTURE, blocks=(((Attention(16, 8, 64), Experts(128, 2, 2048)), 12),))
    rack, servers = (recommend(mixture, f"128x{each}", 128) for each in ("GB200", "B200"))
    assert max(rack.frame()["ep"]) == 64
    assert max(servers.frame()["ep"]) == 128


def test_experts_messages_run_beside_another_microbatch_only_in_virtual_stages() -> None:
    mixture = replace(MIXTURE, blocks=(((Attention(16, 8, 64), Experts(64, 8, 2048)), 12),))
    every = [*layouts(mixture, machine("H100"), 64, 64, 4096)]
    beside = [each for each in every if each.overlaps_experts]
    assert all(each.ep > 8 and (each.pp == 1 or each.chunks > 1) for each in beside)
    for each in beside[::20]:
        alone = replace(each, overlaps_experts=False)
        runs = [made(mixture, layout) for layout in (each, alone)]
        assert step(runs[0]).seconds < step(runs[1]).seconds
        assert max(peak_bytes(runs[0])) > max(peak_bytes(runs[1]))
        assert "--overlap-moe-expert-parallel-comm" in flags.megatron(runs[0])


def test_seventy_billion_do_not_fit_without_sharding_or_a_pipeline(ranked: Recommendation) -> None:
    """70.6e9 x (2 + 2) bytes of weights and gradients over tp <= 8 are 35 GB; states not yet."""
    for each in ranked.candidates:
        layout = each.layout
        assert layout.zero == 3 or 70.6e9 * 4 / (layout.tp * layout.pp) < USABLE * 79.6 * 2**30


def test_a_small_model_needs_no_pipeline() -> None:
    assert recommend(SMALL, "8xH100", 32).candidates[0].layout.pp == 1


def test_the_deepest_model_has_pipelines_of_256_stages() -> None:
    deep = llama("deep", 1024, 16, 8, 4096, 2000, 32000)
    assert max(each.stages for each in layouts(deep, machine("H100"), 64, 64, 4096)) == 256


def test_hybrids_have_neither_virtual_stages_nor_messages_beside_passes() -> None:
    every = layouts(shape("nemotron-3-nano"), machine("B200"), 64, 64, 8192)
    assert {(each.chunks, each.overlaps_experts) for each in every} == {(1, False)}


def test_products_that_run_again_are_no_reason_to_split_less() -> None:
    """Whole tensors fit if products run again, halves as they are; both are told."""
    least = max(peak_bytes(made(SMALL, ParallelLayout(dp=2, zero=1, recompute="selective"))))
    alone = 2, described(312e12, 1.01 * least / USABLE / 1e9, 2e12, 900e9, 25e9)
    found = recommend(SMALL, alone, 2, framework=MEGATRON_CORE).candidates
    told = {(each.layout.tp, each.layout.pp): each.layout.recompute for each in found}
    assert (told[1, 1], told[2, 1]) == ("selective", "nothing")


def test_everything_runs_again_only_where_nothing_fits_else() -> None:
    least = max(peak_bytes(made(SMALL, ParallelLayout(recompute="everything"))))
    for memory, expected in ((1.1 * least, {"everything"}), (5 * least, {"nothing"})):
        alone = 1, described(312e12, memory / USABLE / 1e9, 2e12, 300e9, 25e9)
        found = recommend(SMALL, alone, 2, framework=MEGATRON_CORE).candidates
        assert {each.layout.recompute for each in found} == expected


def made(model: Shape, layout: ParallelLayout) -> TrainingSetup:
    return training(model, layout, machine("H100"), MEGATRON_CORE, seq_tokens=4096)


def test_what_one_rank_holds_is_not_held_twice_in_any_zero_stage() -> None:
    """Nothing is sharded over one replica, nor experts that no other rank holds."""
    for layout in (ParallelLayout(pp=2), ParallelLayout(dp=2, ep=2, zero=1)):
        model = MIXTURE if layout.ep > 1 else SMALL
        peaks = [max(peak_bytes(made(model, replace(layout, zero=z)))) for z in (1, 2, 3)]
        assert peaks == sorted(peaks, reverse=True)


def test_a_larger_node_does_not_slow_messages_between_experts_down() -> None:
    nodes = (replace(machine("MI250X"), node_gpus=gpus) for gpus in (8, 4))
    layout = ParallelLayout(ep=8, dp=8)
    large, small = (
        step(training(MIXTURE, layout, each, MEGATRON_CORE, seq_tokens=4096)).seconds
        for each in nodes
    )
    assert large <= small


@pytest.mark.parametrize(
    ("model", "layout", "says"),
    [
        ("llama3-8b", {"recompute": "activations"}, "--recompute-modules layernorm --bf16"),
        ("deepseek-v3", {"recompute": "activations"}, "layernorm moe_act mla_up_proj"),
        ("llama3-8b", {"pp": 2, "chunks": 4}, "--num-virtual-stages"),
        ("llama3-8b", {"pp": 5}, '-layout "E,t*7|t*7|t*7|t*7|t*4,L"'),
        ("deepseek-v3", {"pp": 2, "ep": 8, "dp": 8}, "--expert-tensor-parallel-size 1"),
        ("deepseek-v3", {"pp": 2, "ep": 8, "dp": 8}, "--mtp-num-layers 1 --pipeline-model"),
        ("llama3-8b", {"dp": 8, "zero": 3}, "optimizer --ckpt-format fsdp_dtensor"),
    ],
)
def test_megatrons_flags_are_what_it_takes(model: str, layout: dict[str, Any], says: str) -> None:
    assert says in flags.megatron(made(shape(model), ParallelLayout(microbatches=8, **layout)))


def test_no_flags_are_printed_that_megatron_refuses() -> None:
    found = recommend(MIXTURE, "16xA100 80GB", 32, dtype="float16", seq_tokens=12_300).candidates
    assert {(each.layout.ep, each.layout.cp) for each in found} <= {(1, 1), (1, 2)}
    assert "--moe-grouped-gemm" not in flags.megatron(found[0].run)
    assert "--fp8-recipe tensorwise" in flags.megatron(replace(found[0].run, dtype="float8"))


def test_graphs_cost_a_mixture_less() -> None:
    launched, graphed = (recommend(MIXTURE, "8xGB300", 32, graphs=each) for each in (False, True))
    assert graphed.candidates[0].step_s < launched.candidates[0].step_s
    said = (
        "--cuda-graph-impl local" in flags.megatron(each.candidates[0].run)
        for each in (launched, graphed)
    )
    assert [*said] == [False, True]


def test_tensors_are_split_further_only_for_a_gain(ranked: Recommendation) -> None:
    """Of two that differ in tp and cp alone, the one that splits less comes later, or is slower."""
    frame = ranked.frame()
    frame["sharded"] = frame["zero"] == 3
    for _, alike in frame.groupby(["ep", "pp", "sharded"]):
        splits = alike[["tp", "cp"]].to_numpy()
        for place, each in enumerate(splits):
            assert not (splits[:place] <= each).all(axis=1).any()


def test_the_interval_is_that_of_the_framework_on_the_device(ranked: Recommendation) -> None:
    assert ranked.half_width == fitted().half_width("Megatron-Core on H100", "dense")


def test_more_memory_never_gives_a_slower_first() -> None:
    small, large = (
        recommend("llama2-7b", (8, name), 32).candidates[0] for name in ("A100 40GB", "A100 80GB")
    )
    assert large.step_s <= small.step_s


@pytest.mark.parametrize(
    ("model", "cluster", "says"),
    [
        ("llama3-70", "8xH100", "did you mean 'llama3-70b'?"),
        ("llama3-8b", "8xH1000", "did you mean 'H100'?"),
        ("llama3-8b", "H100", "e.g. 64xH100, not 'H100'"),
        ("llama3.1-405b", "8xH100", "the smallest takes"),
        ("llama3-8b", "37xH100", "a batch of 16 cannot be dealt to 37 GPUs"),
        ("llama3-8b", "8xA100", "several A100: name one, A100 40GB or A100 80GB"),
        ("llama3-8b", (0, machine("H100")), "gpus must be a whole number of at least 1, not 0"),
        ("llama3-8b", (8, "H100", 3), "a cluster is a count and a device"),
        (None, "8xH100", "a model is a name, a config.json's path or a Shape, not None"),
    ],
)
def test_wrong_input_gets_a_sentence(model: Any, cluster: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recommend(model, cluster, 16)


def test_a_device_without_bfloat16_computes_in_float16() -> None:
    assert "layouts were tried in float16" in recommend(SMALL, "8xV100 32GB", 16).standing
    with pytest.raises(ValueError, match="dtype on V100 32GB must be one of float16, float32"):
        recommend(SMALL, "8xV100 32GB", 16, dtype="bfloat16")
    on_h100 = SMALL, ParallelLayout(), machine("H100"), MEGATRON_CORE
    with pytest.raises(ValueError, match="dtype on H100 must be one of float8, bfloat16"):
        training(*on_h100, seq_tokens=8, dtype="float4")


def test_other_programs_are_told_the_layout(ranked: Recommendation) -> None:
    run = next(each.run for each in ranked.candidates if each.layout.pp > 1)
    layout, titan = run.layout, flags.torchtitan(run)
    assert f"--parallelism.pipeline_parallel_degree {layout.pp} " in titan
    assert f"--training.num_tokens_per_train_step {32 * 8192} " in titan
    call = f"schedules.{layout.method}({layout.stages}, {layout.microbatches}"
    assert call in flags.pipeline(run)
    cut = made(SMALL, ParallelLayout(pp=2, chunks=7, microbatches=2))  # 12 blocks in 14 stages
    assert "balance=[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]" in flags.pipeline(cut)
    cut = made(SMALL, ParallelLayout(pp=5, microbatches=5))
    parts = flags.torchtitan(cut).partition("per_model_part ")[2].partition(" --")[0].split()
    assert parts[0] == "tok_embeddings,layers.0,layers.1"
    assert [part.count("layers.") for part in parts] == [2, 3, 3, 3, 1]
    assert parts[-1] == "layers.11,norm,lm_head"
    alone = flags.pipeline(made(SMALL, ParallelLayout()))
    assert f"balance=[{SMALL.layers + 2}], optimizer=optimizer, loss=loss" in alone


def test_the_command_prints_flags_and_writes_the_candidates(tmp_path: Path) -> None:
    file = tmp_path / "candidates.csv"
    line = f"recommend llama2-7b --gpus 8 --device H100 --batch 32 --lora --output {file}"
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "--tensor-model-parallel-size" in done.output
    assert "1, which trains all weights" in done.output
    assert file.read_text().startswith("tp,cp,ep,pp,chunks,dp")


ONE, OTHER = (Fit(Constants(0.5, 1e-6), {each: ["row"]}) for each in ("plain", "mixed"))
FITS = Fits(
    {"Made on one": ONE, "Made on other": OTHER},
    {
        "plain": {"all": 0.2},
        "mixed": {"dense": 0.1, "experts": 0.3, NEW_DEVICE: 0.25},
        "away": {"all": 0.9},
    },
)


@pytest.mark.parametrize("name", ["H100", "H200"])  # of one chip
def test_a_training_has_the_constants_of_its_machine(name: str) -> None:
    layout = ParallelLayout(tp=2, pp=4, dp=8, microbatches=16, zero=1)
    run = training(shape("llama3-8b"), layout, machine(name), MEGATRON_CORE, seq_tokens=8192)
    assert run.constants == fitted().constants("Megatron-Core on H100")


def test_a_machine_without_rows_has_its_frameworks_median() -> None:
    fits = fitted()
    unseen = fits.constants("Megatron-Core on MI300X")
    known = [fit.constants for name, fit in fits.machines.items() if "Megatron-Core" in name]
    assert min(each.efficiency for each in known) <= unseen.efficiency
    assert unseen.efficiency <= max(each.efficiency for each in known)
    with pytest.raises(ValueError, match="nothing was fitted for 'alone on H100'"):
        fits.constants("alone on H100")


@pytest.mark.parametrize(
    ("machine", "kind", "half"),
    [
        ("Made on one", "dense", 0.2),
        ("Made on other", "dense", 0.1),
        ("Made on other", "experts", 0.3),
        ("Made on third", "dense", 0.25),  # nobody fitted it: its framework's new devices
        ("Alone on one", "dense", 0.9),  # of a framework without any: the widest
    ],
)
def test_an_interval_is_that_of_its_machines_sets(machine: str, kind: str, half: float) -> None:
    assert FITS.half_width(machine, kind) == half
