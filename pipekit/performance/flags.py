"""A layout as other programs take it: flags of Megatron-LM and torchtitan, our own call."""

from collections.abc import Callable, Mapping

from pipekit.performance.predict import stage_layers
from pipekit.performance.shapes import LatentAttention
from pipekit.performance.training import TrainingSetup
from pipekit.plans import Plan


def megatron(run: TrainingSetup) -> str:
    """Return the flags of Megatron-LM's ``pretrain_gpt.py`` (megatron/training/arguments.py)."""
    layout, predictors = run.layout, run.shape.predictors
    mixture, is_float16 = run.shape.kind == "experts", run.dtype == "float16"
    shards_all = layout.zero == 3
    latent = any(isinstance(layer, LatentAttention) for layer, _ in run.shape.each_layer())
    is_even, pieces = len({*stage_layers(run)}) == 1 and not predictors, ""
    if layout.pp > 1 and not is_even:
        pieces = Plan.by_hand(_balance(run, predictors)).to_megatron_layout(predictors)
    modules = {  # that run again; one that the model lacks would be refused
        "activations": "layernorm" + " moe_act" * mixture + " mla_up_proj" * latent,
        "selective": "mlp" + " moe" * mixture,
        "experts": "moe",
    }.get(layout.recompute)
    flags = {
        f"--tensor-model-parallel-size {layout.tp}": True,
        f"--context-parallel-size {layout.cp}": True,
        f"--pipeline-model-parallel-size {layout.pp}": True,
        f"--micro-batch-size {layout.microbatch_samples}": True,
        f"--global-batch-size {layout.global_batch_samples}": True,
        f"--seq-length {run.seq_tokens}": True,
        "--sequence-parallel": layout.tp > 1,
        f"--expert-model-parallel-size {layout.ep} --expert-tensor-parallel-size 1": mixture,
        "--moe-grouped-gemm": mixture and not is_float16,
        "--moe-token-dispatcher-type alltoall": mixture,
        "--overlap-moe-expert-parallel-comm": mixture and layout.overlaps_experts,
        "--cuda-graph-impl local": run.graphs,
        "--grad-reduce-in-bf16": run.framework.gradients_held == 2 and not is_float16,
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params": shards_all,
        "--use-distributed-optimizer": layout.zero > 0,
        "--overlap-grad-reduce --overlap-param-gather": layout.zero in (1, 2),
        "--ckpt-format fsdp_dtensor": shards_all,
        f"--num-virtual-stages-per-pipeline-rank {layout.chunks}": is_even and layout.chunks > 1,
        f"--mtp-num-layers {predictors}": predictors,
        f'--pipeline-model-parallel-layout "{pieces}"': pieces,
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": (
            layout.recompute == "everything"
        ),
        f"--recompute-granularity selective --recompute-modules {modules}": modules,
        _MEGATRON_DTYPE.get(run.dtype, ""): run.dtype in _MEGATRON_DTYPE,
    }
    return " ".join(flag for flag, is_set in flags.items() if is_set)


def torchtitan(run: TrainingSetup) -> str:
    """Return torchtitan's options (torchtitan/config, the names of 2026)."""
    layout = run.layout
    shards = layout.zero > 0
    tokens = layout.microbatch_samples * run.seq_tokens
    recompute = {"nothing": "none", "everything": "full"}
    options = {
        "parallelism.tensor_parallel_degree": layout.tp,
        "parallelism.context_parallel_degree": layout.cp,
        "parallelism.expert_parallel_degree": layout.ep,
        "parallelism.pipeline_parallel_degree": layout.pp,
        "parallelism.data_parallel_shard_degree": layout.dp if shards else 1,
        "parallelism.data_parallel_replicate_degree": 1 if shards else layout.dp,
        "training.num_tokens_per_microbatch_per_dp_rank": tokens,
        "training.num_tokens_per_train_step": layout.global_batch_samples * run.seq_tokens,
        "training.max_context_length": run.seq_tokens,
        "activation_checkpoint.mode": recompute.get(layout.recompute, "selective"),
    }
    if layout.pp > 1:
        # Listed, since by layers a stage torchtitan makes other stages, mostly such as it refuses.
        parts = map(",".join, Plan.by_hand(_balance(run)).to_torchtitan())
        options |= {
            "parallelism.pipeline_parallel_schedule": "Interleaved" * (layout.chunks > 1) + "1F1B",
            "parallelism.pipeline_parallel_module_fqns_per_model_part": " ".join(parts),
            "parallelism.num_pp_microbatches": layout.microbatches,
        }
    return " ".join(f"--{name} {value}" for name, value in options.items())


def pipeline(run: TrainingSetup) -> str:
    """Return the call of :class:`pipekit.Pipeline`: the pipeline and its replicas, no more.

    Its layers are the embedding, each block, and the head; optimizer and loss are the reader's.
    """
    layout = run.layout
    workers = f", workers={layout.pp}" if layout.chunks > 1 else ""
    call = f"schedules.{layout.method}({layout.stages}, {layout.microbatches}{workers})"
    if layout.dp > 1:
        call = f"schedules.replicate({call}, {layout.dp})"
    recompute = "always" if layout.recompute == "everything" else "never"
    return (
        f"pk.Pipeline(layers, {call}, balance={_balance(run)}, optimizer=optimizer, loss=loss, "
        f'execution=pk.Execution(recompute="{recompute}"))'
    )


def _balance(run: TrainingSetup, predictors: int = 0) -> list[int]:
    """Return how many layers each stage has, with the embedding, predictors and the head."""
    balance = stage_layers(run)
    balance[0] += 1
    balance[-1] += predictors + 1  # of one stage, too
    return balance


_MEGATRON_DTYPE = {
    "float4": "--bf16 --fp4-format e2m1",
    # By the usual recipe, delayed scaling, norms and activations cannot run again.
    "float8": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
    "bfloat16": "--bf16",
    "float16": "--fp16",
}

FRAMEWORKS: Mapping[str, Callable[[TrainingSetup], str]] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "pipekit": pipeline,
}
"""Programs that a layout can be written for."""
