"""What methods gain over Flush: simulated, emulated, and measured on two cores.

    python experiments/schedule_gains.py profile     # of a GPT block, on one thread
    python experiments/schedule_gains.py emulate     # all methods on 4 workers, once: some 30 s
    python experiments/schedule_gains.py train 0     # every third method on 2 workers, once
    python experiments/schedule_gains.py pairs 0     # Flush and ZB-H1 in turn on network 0 or 1
    python experiments/schedule_gains.py summary

Each piece is added to the folder's files, so that they can be run again and again, each while
nothing else runs; the last one writes the tables.
"""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from experiments.zoo import gains, summary
from experiments.zoo.closed_forms import Setting
from experiments.zoo.comparison import NAMES
from pipekit.host.provenance import provenance, write
from pipekit.profiling import Profile

app = typer.Typer(add_completion=False, help=__doc__)
Folder = Annotated[Path, typer.Option(help="Where everything is.")]
REFERENCE = Path("results/reference/schedules")
EMULATED, REAL = Setting(4, 12), Setting(2, 8)
OVERLAP = 0.8  # of a forward under a backward, where one is emulated: a preset, measured nowhere


@app.command(name="profile")
def profile_block(folder: Folder = REFERENCE, repeats: int = 30) -> None:
    """Profile a block of a GPT."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    block = gains.block_profile(repeats)
    block.save(folder / "block.json")
    print(block.to_frame())


@app.command()
def emulate(folder: Folder = REFERENCE) -> None:
    """Emulate every method once, those with overlaps twice."""
    block = Profile.load(folder / "block.json")
    _add(folder / "emulated.csv", gains.emulated(block, EMULATED))
    overlapped = gains.emulated(block, EMULATED, overlap=OVERLAP, names=["dualpipe", "dualpipe-v"])
    _add(folder / "emulated.csv", overlapped)


@app.command()
def train(part: int, folder: Folder = REFERENCE) -> None:
    """Train by every third method once, from method 0, 1 or 2 on."""
    _add(folder / "trained.csv", gains.trained(REAL, names=NAMES[part::3]))


@app.command()
def pairs(network: int, folder: Folder = REFERENCE, count: int = 5) -> None:
    """Train by Flush and by ZB-H1 in turn."""
    name = [*gains.NETWORKS][network]
    _add(folder / "pairs.csv", gains.pairs(name, REAL, count, batches=2))
    simulated = gains.predicted(name, REAL, batches=2)
    _add(folder / "predicted.csv", pd.DataFrame([{"network": name, **simulated}]))


@app.command(name="summary")
def write_summary(folder: Folder = REFERENCE) -> None:
    """Write the tables, and say what they say."""
    tables = summary.tables(folder, EMULATED)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        print(table.to_string())
    parameters: dict[str, Any] = {
        "emulated": {"workers": EMULATED.workers, "microbatches": EMULATED.microbatches},
        "measured": {"workers": REAL.workers, "microbatches": REAL.microbatches},
        "block": {"hidden": gains.HIDDEN, "tokens": gains.TOKENS, "rows": gains.ROWS},
        "overlap": OVERLAP,
    }
    write(folder / "provenance.json", provenance("emulated", seed=0, parameters=parameters))


def _add(path: Path, frame: pd.DataFrame) -> None:
    """Add rows to a file, which may not be there yet."""
    before = [pd.read_csv(path)] if path.exists() else []
    whole = pd.concat([*before, frame], ignore_index=True)
    whole.to_csv(path, index=False, float_format="%.6g")
    print(frame.to_string())


if __name__ == "__main__":
    app()
