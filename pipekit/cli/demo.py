"""``pipekit demo``: a first training by two methods, and their difference, in half a minute."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk

STAGES, MICROBATCHES, BATCH_ROWS, LEARNING_RATE, SEED = 2, 4, 50, 0.002, 0
BALANCE = 7, 7  # layers of each stage, which take about equally long on a CPU
HOW = {
    "model-parallel": "Model parallelism has no pipeline: one worker computes, the other waits.",
    "pipedream": "PipeDream has one: both compute, and minibatches in flight keep their weights.",
}
"""A sentence about each method while it trains."""
NEXT = """Next:
  pipekit schedule gpipe flush pipedream 2bw       the schedules of four methods, drawn
  python -m pipekit.explore.puzzles                find the methods yourself, in a browser
  docs/start.md                                    train by a schedule of your own
(they are in .venv/bin: source .venv/bin/activate)"""
DRAWN_BATCHES = 4  # of the timelines: more make bars too narrow to read


def demo(
    output: Annotated[Path, typer.Option(file_okay=False)] = Path("results/runs/demo"),
) -> None:
    """Train a small convolutional network on real digits by two methods, half a minute in all.

    Model parallelism has one minibatch at a time in the stages; PipeDream has a pipeline of
    them. Both run on this machine, a worker a stage.

    \b
    [b]Example[/b]
      pipekit demo

    Args:
        output: The folder for the timelines' picture and numbers.
    """
    from pipekit.host.provenance import workers_on_cores

    typer.echo(
        "A convolutional network learns 4,000 images of MNIST by two methods, in "
        f"{STAGES} stages with a worker each: {workers_on_cores(STAGES)}."
    )
    import pandas as pd  # after that: it takes seconds, as the next ones do

    from pipekit.schedules.methods.by_name import METHODS
    from pipekit.workloads import ACCURACY

    runs: list[pk.Run] = []
    for method, how in HOW.items():
        typer.echo(how)
        schedule = METHODS[method](STAGES, MICROBATCHES)
        run, score = _trained(schedule)
        runs.append(run)
        typer.echo(
            f"  {ACCURACY.name} {ACCURACY.shown(score)} on 1,000 unseen images after "
            f"{run.wall_s:.1f} s; weight versions kept by each worker: "
            f"{' and '.join(map(str, run.weight_slots))} (measured)"
        )
    drawn = [run.first_batches(DRAWN_BATCHES) for run in runs]
    numbers = pd.concat([trace.frame.assign(method=trace.name) for trace in drawn])
    path = pk.plots.save(pk.plots.compare(*drawn), output / "timelines", numbers)["svg"]
    idle = [run.trace.bubbles().loc["all", "steady"] for run in runs]
    typer.echo(
        f"Workers were idle for {idle[0]:.0%} of the time without a pipeline and for {idle[1]:.0%} "
        "with one (measured)."
    )
    typer.echo(f"The first {DRAWN_BATCHES} batches as they ran: {path.resolve()}")
    typer.echo(NEXT)


def _trained(schedule: "pk.Schedule") -> "tuple[pk.Run, float]":
    import torch

    from pipekit.workloads import WORKLOADS

    workload = WORKLOADS["convnet"]
    data = workload.data()
    torch.manual_seed(SEED)
    pipeline = pk.Pipeline(
        workload.build(),
        schedule,
        balance=BALANCE,
        optimizer=partial(torch.optim.Adam, lr=LEARNING_RATE),
        loss=workload.loss,
        seed=SEED,
    )
    run = pipeline.train(data.batches(BATCH_ROWS, SEED), watch=pk.Watch(progress=True))
    return run, pipeline.evaluate(data.test_batches(BATCH_ROWS), workload.metric.of)
