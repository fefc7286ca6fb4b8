"""How far predicted seconds of real runs are off, and why.

    python experiments/benchmarks/prediction.py [--model GPT] [--repeats 5] [--output FOLDER]

Three small networks by four methods on two workers, threads and processes: 24 cases, in three
minutes.  Plain loops, a profile and trainings take turns (experiments.prediction), after
a short calibration of the host.  A machine that does anything else beside leaves cases undecided.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from outcome import conclude, wide_console
from tqdm import tqdm

from experiments.prediction import cases, compared, trained_models
from pipekit.emulation import measured_host
from pipekit.host.provenance import provenance

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
    console = wide_console()
    record = provenance("measured", repeats=repeats, passes=passes, batches=batches)
    record["load_average_at_start"] = os.getloadavg()[0]
    hosts = {each: measured_host(each) for each in transport or ("threads", "distributed")}
    record["hosts"] = {name: asdict(host) for name, host in hosts.items()}
    grid = cases(METHODS, [2], [4], batches)
    models = [each for each in trained_models() if each.name.startswith(model)]
    each = [compared(x, grid, hosts, repeats, passes) for x in tqdm(models, unit="network")]
    table = pd.concat(each, ignore_index=True)
    console.print(table.to_string(index=False, float_format="%.3g"))
    console.print(summary(table))
    conclude(console, "prediction", table, record, output)


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
