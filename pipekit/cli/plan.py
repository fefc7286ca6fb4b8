"""``pipekit plan``: which layers to run on which workers."""

from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk
from pipekit.cli.common.options import File, chosen_cluster, require_suffix, save


def plan(
    profile: Path,
    cluster: str | None = None,
    workers: int | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    method: str = "pipedream",
    straight: bool = False,
    max_batch: int | None = None,
    stages: int | None = None,
    chunks: Annotated[int | None, typer.Option(min=1)] = None,
    microbatches: int | None = None,
    optimizer_states: float | None = None,
    output: File = None,
) -> None:
    """Find which layers to run on which workers, and predict the time and memory.

    \b
    [b]Examples[/b]
      pipekit plan vgg16.json --cluster pipedream-a --workers 8 --output plan.json
      pipekit plan vgg16.json --workers 8 --bandwidth 1.25e9 --memory 16e9
      pipekit plan gpt.json --cluster 2bw-v100 \\
        --method parallel_pipelines --max-batch 512
      pipekit plan gpt.json --workers 8 --bandwidth 50e9 --method interleaved \\
        --chunks 2 --microbatches 32

    Args:
        method: pipedream, parallel_pipelines (PipeDream-2BW's), balance or interleaved.
        straight: For pipedream: one worker a stage.
        max_batch: For parallel_pipelines: the most rows of a global batch.
        stages: For balance: number of stages, by default one a worker.
        chunks: For interleaved: stages a worker, 1 by default.
        microbatches: For balance and interleaved: number in a batch, 1 by default.
        output: Write the plan to this .json file.
    """
    from pipekit.reading import printable
    from pipekit.units import plural

    require_suffix(output, (".json",))
    costs = pk.Profile.load(profile)
    given = {
        "replicate": False if straight else None,
        "max_batch": max_batch,
        "stages": stages,
        "chunks": chunks,
        "microbatches": microbatches,
        "optimizer_states": optimizer_states,
    }
    options = {name: value for name, value in given.items() if value is not None}
    used = chosen_cluster(cluster, workers, bandwidth, memory)
    best = pk.plan(costs, used, method, **options)
    typer.echo(best)
    if (spare := used.workers - best.workers) > 0:
        verb = "stay" if spare > 1 else "stays"
        typer.echo(f"  {plural(spare, 'worker')} of {used.workers} {verb} idle in this plan")
    origin = printable(str(costs.provenance.get("label", "of unknown origin")))
    typer.echo(f"  simulated, on {used.name}; the costs of the {len(costs)} layers are {origin}")
    if method == "interleaved":
        typer.echo("  if the layers are a transformer's embedding, blocks and head:")
        typer.echo(f"  --pipeline-model-parallel-layout {best.to_megatron_layout()}")
        name = "parallelism.pipeline_parallel_module_fqns_per_model_part"
        typer.echo(f"  {name} = {best.to_torchtitan()}")
    save(output, best.save)
