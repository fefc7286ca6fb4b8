"""A layout as other programs take it: flags of Megatron-LM, torchtitan's TOML, our own call."""

from collections.abc import Callable, Mapping

from pipekit.performance.layout import beside_head
from pipekit.performance.training import TrainingSetup


def megatron(run: TrainingSetup) -> str:
    """Return the flags of Megatron-LM's ``pretrain_gpt.py`` (megatron/training/arguments.py)."""
    layout = run.layout
    flags = {
        "--tensor-model-parallel-size": layout.tp,
        "--context-parallel-size": layout.cp,
        "--expert-model-parallel-size": layout.ep,
        "--pipeline-model-parallel-size": layout.pp,
        "--micro-batch-size": layout.microbatch_samples,
        "--global-batch-size": layout.global_batch_samples,
        "--seq-length": run.seq_tokens,
    }
    words = [f"{name} {value}" for name, value in flags.items()]
    words += ["--sequence-parallel"] if layout.tp > 1 else []
    words += ["--enable-cuda-graph"] if run.graphs else []
    words += ["--grad-reduce-in-bf16"] if run.framework.gradients_held == 2 else []
    words += ["--use-distributed-optimizer"] if layout.zero in (1, 2) else []
    if layout.zero == 3:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"]
    if layout.chunks > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank {layout.chunks}")
    words += _MEGATRON_RECOMPUTE[layout.recompute]
    words += {"float8": ["--fp8-format hybrid"], "bfloat16": ["--bf16"]}.get(run.dtype, [])
    return " ".join(words)


def torchtitan(run: TrainingSetup) -> str:
    """Return the tables of torchtitan's TOML (torchtitan/config/job_config.py)."""
    layout = run.layout
    schedule = "Interleaved1F1B" if layout.chunks > 1 else "1F1B"
    shards = layout.zero > 0
    layers = -(-run.shape.layers // layout.stages)
    mode = {"nothing": "none", "everything": "full"}.get(layout.recompute, "selective")
    tables: Mapping[str, Mapping[str, object]] = {
        "parallelism": {
            "tensor_parallel_degree": layout.tp,
            "context_parallel_degree": layout.cp,
            "expert_parallel_degree": layout.ep,
            "pipeline_parallel_degree": layout.pp,
            "pipeline_parallel_schedule": f'"{schedule}"',
            "pipeline_parallel_layers_per_stage": layers,
            "pipeline_parallel_microbatch_size": layout.microbatch_samples,
            "data_parallel_shard_degree": layout.dp if shards else 1,
            "data_parallel_replicate_degree": 1 if shards else layout.dp,
        },
        "training": {
            "local_batch_size": layout.microbatch_samples * layout.microbatches,
            "global_batch_size": layout.global_batch_samples,
            "seq_len": run.seq_tokens,
        },
        "activation_checkpoint": {"mode": f'"{mode}"'},
    }
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in table.items())])
        for name, table in tables.items()
    )


def pipeline(run: TrainingSetup) -> str:
    """Return the call of :class:`pipekit.Pipeline`: the pipeline and its replicas, no more.

    Its layers are the embedding, each block, and the head.
    """
    layout = run.layout
    balance = beside_head(run.shape.layers, layout.stages, 0)
    balance[0], balance[-1] = balance[0] + 1, balance[-1] + 1
    workers = f", workers={layout.pp}" if layout.chunks > 1 else ""
    call = f"schedules.{layout.method}({layout.stages}, {layout.microbatches}{workers})"
    if layout.dp > 1:
        call = f"schedules.replicate({call}, {layout.dp})"
    recompute = "always" if layout.recompute == "everything" else "never"
    return (
        f"pk.Pipeline(layers, {call}, balance={balance}, "
        f'execution=pk.Execution(recompute="{recompute}"))'
    )


_MEGATRON_RECOMPUTE: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "activations": (
        *("--recompute-granularity selective", "--recompute-modules layernorm moe_act"),
    ),
    "selective": ("--recompute-activations",),
    "experts": ("--recompute-granularity selective", "--recompute-modules moe"),
    "everything": (
        *("--recompute-granularity full", "--recompute-method uniform"),
        "--recompute-num-layers 1",
    ),
}

FRAMEWORKS: Mapping[str, Callable[[TrainingSetup], str]] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "pipekit": pipeline,
}
"""Programs that a layout can be written for."""
