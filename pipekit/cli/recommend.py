"""``pipekit recommend``: which parallelism trains a model fastest on some GPUs."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pipekit.cli.common.options import require_suffix, save


def recommend(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A published model, e.g. llama3-70b, or a config.json."
        ),
    ],
    gpus: Annotated[int, typer.Option(min=1, help="Number of GPUs.")],
    device: Annotated[str, typer.Option(help="Of a data sheet, e.g. H100, A100 80GB, GB200.")],
    batch: Annotated[int, typer.Option(min=1, help="Samples a step, over all replicas.")],
    seq_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a sample.")] = 4096,
    dtype: Annotated[
        str, typer.Option(help="Of products: bfloat16, float16, float8 or float4.")
    ] = "bfloat16",
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Each pass is launched as one CUDA graph.")
    ] = False,
    lora: Annotated[
        bool, typer.Option("--lora", help="Weights are frozen, beside small adapters.")
    ] = False,
    framework: Annotated[
        str, typer.Option(help="Whose flags are printed: megatron, torchtitan or pipekit.")
    ] = "megatron",
    rank: Annotated[int, typer.Option(min=1, help="Print the flags of this candidate.")] = 1,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write all candidates into a .csv.")
    ] = None,
) -> None:
    """Rank the ways to spread a model over GPUs by the time of a step, and print flags to paste.

    Every step is a replay of the method's own table with seconds from data sheets; how far to trust
    them is in docs/predictions.md.

    \b
    [b]Examples[/b]
      pipekit recommend llama3-70b --gpus 64 --device H100 --batch 128
      pipekit recommend config.json --gpus 512 --device "A100 80GB" --batch 1024 \\
        --framework torchtitan --output candidates.csv
    """
    require_suffix(output, (".csv",))
    from pipekit.choices import require_choice
    from pipekit.performance import flags
    from pipekit.performance.devices import machine
    from pipekit.performance.recommend import recommend as ranked

    require_choice("framework", framework, flags.FRAMEWORKS)
    how: dict[str, Any] = {"graphs": graphs, "trains_weights": not lora, "dtype": dtype}
    found = ranked(model, (gpus, machine(device)), batch, seq_tokens=seq_tokens, **how)
    if rank > len(found.candidates):
        raise ValueError(f"--rank must be at most {len(found.candidates)}, the candidates")
    typer.echo(found)
    typer.echo(f"\nFor {framework}, candidate {rank}:\n")
    typer.echo(flags.FRAMEWORKS[framework](found.candidates[rank - 1].run))
    save(output, partial(found.frame().to_csv, index=False))
