"""How far predicted seconds of real runs are off, and why.

    python experiments/benchmarks/prediction.py [--model GPT] [--repeats 5] [--output FOLDER]

Three small networks by four methods on two workers, threads and processes: 24 cases, in three
minutes.  Plain loops, a profile and trainings take turns (experiments.prediction.causes), after
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

from experiments.prediction.causes import compared, summary
from experiments.prediction.runs import cases
from experiments.prediction.study import measure_hosts, trained_models
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
    hosts = measure_hosts(transport or ("threads", "distributed"))
    record["hosts"] = {name: asdict(host) for name, host in hosts.items()}
    grid = cases(METHODS, [2], [4], batches)
    models = [each for each in trained_models() if each.name.startswith(model)]
    rows = [
        row
        for each in tqdm(models, unit="network")
        for row in compared(each, grid, hosts, repeats, passes)
    ]
    table = pd.DataFrame(rows)
    console.print(table.to_string(index=False, float_format="%.3g"))
    console.print(summary(rows))
    conclude(console, "prediction", table, record, output)


if __name__ == "__main__":
    typer.run(main)
