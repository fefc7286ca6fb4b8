"""``pipekit plan``: which layers to run on which workers."""

from pathlib import Path
from typing import Annotated

import typer

from pipekit.cli.common.options import (
    Bandwidth,
    ClusterName,
    MemoryBytes,
    OptimizerStates,
    Quiet,
    Workers,
    chosen_cluster,
    save,
)


def plan(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A file of pipekit profile.")],
    cluster: ClusterName = None,
    workers: Workers = None,
    bandwidth: Bandwidth = None,
    memory: MemoryBytes = None,
    method: Annotated[
        str,
        typer.Option(
            help="pipedream, parallel_pipelines (PipeDream-2BW's), balance or interleaved."
        ),
    ] = "pipedream",
    straight: Annotated[
        bool, typer.Option("--straight", help="For pipedream: one worker a stage.")
    ] = False,
    max_batch: Annotated[
        int | None, typer.Option(help="For parallel_pipelines: the most rows of a global batch.")
    ] = None,
    stages: Annotated[
        int | None, typer.Option(help="For balance: number of stages, by default one a worker.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(min=1, help="For interleaved: stages a worker, 1 by default.")
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(help="For balance and interleaved: number in a batch, 1 by default."),
    ] = None,
    optimizer_states: OptimizerStates = 0,
    quiet: Quiet = False,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the plan to this .json file.")
    ] = None,
) -> None:
    """Find which layers to run on which workers, and predict the time and memory.

    \b
    [b]Examples[/b]
      pipekit plan vgg16.json --cluster pipedream-a --workers 8
      pipekit plan vgg16.json --workers 8 --bandwidth 1.25e9 --memory 16e9
      pipekit plan gpt.json --cluster 2bw-v100 \\
        --method parallel_pipelines --max-batch 512
      pipekit plan vgg16.json --cluster local --method balance --output plan.json
      pipekit plan gpt.json --workers 8 --bandwidth 50e9 --method interleaved \\
        --chunks 2 --microbatches 32
    """
    from pipekit.planning import plan as best_plan
    from pipekit.profiling import Profile
    from pipekit.reading import printable
    from pipekit.units import plural

    costs = Profile.load(profile)
    given = {
        "replicate": False if straight else None,
        "max_batch": max_batch,
        "stages": stages,
        "chunks": chunks,
        "microbatches": microbatches,
        "optimizer_states": optimizer_states or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    used = chosen_cluster(cluster, workers, bandwidth, memory)
    best = best_plan(costs, used, method, progress=not quiet, **options)
    typer.echo(best)
    if spare := used.workers - best.workers:
        verb = "stay" if spare > 1 else "stays"
        typer.echo(f"  {plural(spare, 'worker')} of {used.workers} {verb} idle in this plan")
    origin = printable(str(costs.provenance.get("label", "of unknown origin")))
    typer.echo(f"  simulated, on {used.name}; the costs of the {len(costs)} layers are {origin}")
    if method == "interleaved":
        typer.echo(f"  --pipeline-model-parallel-layout {best.to_megatron_layout()}")
        typer.echo(f"  parallelism.module_fqns_per_model_part = {best.to_torchtitan()}")
    save(output, best.save)
