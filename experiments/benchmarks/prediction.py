"""How far predicted seconds of real runs are off, and why: predicted first, then measured.

    python -m experiments.benchmarks.prediction --predict --output results/reference/benchmarks
    git add results && git commit
    python -m experiments.benchmarks.prediction --output results/reference/benchmarks

Three small networks by four methods on two workers, threads and processes: 24 cases, in three
minutes.  The first command calibrates the host, profiles, and trains no pipeline; the second keeps
the commit of what the first wrote.  Plain loops stand beside profiles and runs
(experiments.prediction).  A machine that does anything else beside leaves cases undecided.
"""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from experiments.benchmarks.harness import conclude, measured, show
from experiments.prediction import cases, compared, predicted, summary, trained_models
from pipekit.emulation import measured_host
from pipekit.simulation import Host

METHODS = ("gpipe", "flush", "2bw", "pipedream")
PROMISE = "predicted"
"""The name of the table of predictions."""


def main(
    predict: Annotated[bool, typer.Option("--predict", help="Predict; run no pipeline.")] = False,
    model: Annotated[str, typer.Option(help="Only networks whose names begin so.")] = "",
    transport: Annotated[list[str] | None, typer.Option(help="Default: both.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    passes: Annotated[int, typer.Option(min=1, help="Of each profile.")] = 10,
    batches: Annotated[int, typer.Option(min=1, help="Of 4 microbatches each.")] = 8,
    output: Annotated[Path, typer.Option(help="Folder for the tables.")] = Path("results/runs"),
) -> None:
    """Predict runs, or compare what was predicted with them."""
    record = measured(repeats=repeats, passes=passes, batches=batches)
    grid = cases(METHODS, [2], [4], batches)
    models = [each for each in trained_models() if each.name.startswith(model)]
    bar = tqdm(models, unit="network")
    if predict:
        hosts = {each: measured_host(each) for each in transport or ("threads", "distributed")}
        record["hosts"] = {name: asdict(host) for name, host in hosts.items()}
        tables = [predicted(each, grid, hosts, repeats, passes) for each in bar]
        conclude(PROMISE, pd.concat(tables, ignore_index=True), record, output)
        return
    record["predicted in"] = committed(output / f"{PROMISE}.csv")
    about = json.loads((output / f"{PROMISE}.json").read_text(encoding="utf-8"))
    hosts = {name: Host(**seconds) for name, seconds in about["hosts"].items()}
    promised = pd.read_csv(output / f"{PROMISE}.csv")
    tables = [compared(x, grid, hosts, promised, repeats, passes) for x in bar]
    table = pd.concat(tables, ignore_index=True)
    show(table, 3)
    show(summary(table), 3)
    conclude("prediction", table, record, output)


def committed(path: Path) -> str:
    """Return the commit of a file as it stands; a ValueError unless there is one."""
    git = ["git", "-C", str(path.parent)]
    log = [*git, "log", "-1", "--format=%H", "--", path.name]
    found = subprocess.run(log, capture_output=True, text=True).stdout.strip()
    if not found or subprocess.run([*git, "diff", "--quiet", "HEAD", "--", path.name]).returncode:
        raise ValueError(f"{path} is not committed: predict with --predict, and commit that first")
    return found


if __name__ == "__main__":
    typer.run(main)
