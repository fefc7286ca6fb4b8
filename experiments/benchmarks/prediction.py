"""How far predicted seconds of real runs are off, and why.

    python -m experiments.benchmarks.prediction [--model GPT] [--repeats 5] [--output FOLDER]

Three small networks by four methods on two workers, threads and processes: 24 cases, in three
minutes.  Plain loops, a profile and trainings take turns (experiments.prediction), after
a short calibration of the host.  A machine that does anything else beside leaves cases undecided.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from experiments.benchmarks.harness import conclude, measured, show
from experiments.prediction import cases, compared, trained_models
from pipekit.emulation import measured_host

METHODS = ("gpipe", "flush", "2bw", "pipedream")


def main(
    model: Annotated[str, typer.Option(help="Only networks whose names begin so.")] = "",
    transport: Annotated[list[str] | None, typer.Option(help="Default: both.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    passes: Annotated[int, typer.Option(min=1, help="Of each profile.")] = 10,
    batches: Annotated[int, typer.Option(min=1, help="Of 4 microbatches each.")] = 8,
    output: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
) -> None:
    """Compare predictions with runs."""
    record = measured(repeats=repeats, passes=passes, batches=batches)
    hosts = {each: measured_host(each) for each in transport or ("threads", "distributed")}
    record["hosts"] = {name: asdict(host) for name, host in hosts.items()}
    grid = cases(METHODS, [2], [4], batches)
    models = [each for each in trained_models() if each.name.startswith(model)]
    each = [compared(x, grid, hosts, repeats, passes) for x in tqdm(models, unit="network")]
    table = pd.concat(each, ignore_index=True)
    show(table, 3)
    print(summary(table))
    conclude("prediction", table, record, output)


def summary(table: pd.DataFrame) -> str:
    """Return the mean and the worst error of the cases that are decided, in a sentence."""
    decided = table.loc[table["outcome"] == "decided", "error"].abs()
    counts = f"{len(decided)} of {len(table)} cases are decided"
    if not len(decided):
        return f"{counts}: the machine was not quiet"
    return (
        f"{counts}; seconds are predicted within {decided.mean():.1%} on average and "
        f"{decided.max():.1%} at most (measured)"
    )


if __name__ == "__main__":
    typer.run(main)
