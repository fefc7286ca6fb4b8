"""``pipekit recommend``: which parallelism trains a model fastest on some GPUs."""

from functools import partial
from typing import Annotated

import typer

import pipekit as pk
from pipekit.cli.common.options import File, require_suffix, save


def recommend(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    gpus: Annotated[int, typer.Option(min=1)],
    device: Annotated[str, typer.Option()],
    batch: Annotated[int, typer.Option(min=1)],
    seq_tokens: Annotated[int, typer.Option(min=1)] = 4096,
    dtype: str | None = None,
    graphs: bool = False,
    lora: bool = False,
    framework: str = "megatron",
    rank: Annotated[int, typer.Option(min=1)] = 1,
    output: File = None,
) -> None:
    """Rank the ways to spread a model over GPUs by the time of a step, and print flags to paste.

    Every step is a replay of the method's own table with seconds from data sheets; how far to trust
    them is in docs/predictions.md.

    \b
    [b]Examples[/b]
      pipekit recommend llama3-70b --gpus 64 --device H100 --batch 128
      pipekit recommend config.json --gpus 512 --device "A100 80GB" --batch 1024 \\
        --framework torchtitan --output candidates.csv

    Args:
        model: A published model, e.g. llama3-70b, or a config.json.
        gpus: Number of GPUs.
        device: Of a data sheet, e.g. H100, A100 80GB, GB200.
        batch: Samples a step, over all replicas.
        seq_tokens: Tokens of a sample.
        dtype: Of products: bfloat16, float16, float8 or float4; by default the first that the
            device has.
        graphs: Each pass is launched as one CUDA graph.
        lora: Weights are frozen, beside small adapters.
        framework: Whose flags are printed: megatron, torchtitan or pipekit.
        rank: Print the flags of this candidate.
        output: Write all candidates into a .csv.
    """
    require_suffix(output, (".csv",))
    from pipekit.choices import require_choice
    from pipekit.performance import flags

    require_choice("framework", framework, flags.FRAMEWORKS)
    found = pk.recommend(
        model,
        (gpus, device),
        batch,
        seq_tokens=seq_tokens,
        graphs=graphs,
        trains_weights=not lora,
        dtype=dtype,
    )
    if rank > len(found.candidates):
        raise ValueError(f"--rank must be at most {len(found.candidates)}, the candidates")
    typer.echo(found)
    rest = ", which trains all weights: freeze them, and add adapters in your code" if lora else ""
    typer.echo(f"\nFor {framework}, candidate {rank}{rest}:\n")
    typer.echo(flags.FRAMEWORKS[framework](found.candidates[rank - 1].run))
    save(output, partial(found.frame().to_csv, index=False))
