"""Where a pipeline pays on a CPU and where not: a page of what networks.py has measured.

    python -m experiments.benchmarks.where_it_pays results/reference/benchmarks

writes the folder's README.md from its networks.csv and networks.json, as networks.py does itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

SERIAL, ALL_CORES, LIMIT = "serial, one core", "serial, all cores, whole batch", "limit"
DDP, DATA_PARALLEL = "DDP", "pipekit, one stage on all"
PIPELINES = ("pipekit, threads", "pipekit, processes", "torch pipelining")
CASE = ["network", "stages"]

PAGE = """\
# Where a pipeline pays on a CPU, and where not

{verdicts}
How many times as fast as a plain loop on one core each way to train is (measured on {cpu},
{cores} cores; medians of the runs in [networks.csv](networks.csv), lowest and highest in
brackets, every ratio between runs of one repeat):

{table}
1F1B with {microbatches} microbatches a batch: 8 layers of width 512 with 64 rows a microbatch, a
GPT of 10 million parameters with one sequence of 64 bytes, ResNet-50 with two images of 64
pixels.  "limit" is what the cores give at once: as many processes as stages, each of which trains
its part of the layers, with nothing passing between them.

    python -m experiments.benchmarks.networks --output results/reference/benchmarks
"""


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of a batch's time in which a stage of a balanced pipeline is idle."""
    return (stages - 1) / (microbatches + stages - 1)


def summarise(runs: pd.DataFrame, microbatches: int, cores: int) -> pd.DataFrame:
    """Return a row for each network, number of stages and contestant: medians and ranges.

    Every ratio is between runs of one repeat.
    """
    rows = []
    for (network, stages), case in runs.groupby(CASE, sort=False):
        seconds = case.pivot_table(index="repeat", columns="contestant", values="seconds")
        for contestant in case["contestant"].unique():
            own = seconds[contestant]
            faster = seconds[SERIAL] / own
            share = seconds[LIMIT] / own / (1 - bubble(stages, microbatches))
            held = contestant in PIPELINES and stages <= cores
            vs_ddp = seconds[DDP] / own
            rows.append(
                {
                    "network": network,
                    "stages": stages,
                    "contestant": contestant,
                    "repeats": len(own.dropna()),
                    "ms": 1e3 * own.median(),
                    "vs_serial": faster.median(),
                    "vs_serial_min": faster.min(),
                    "vs_serial_max": faster.max(),
                    "share_of_limit": share.median() if held else None,
                    "vs_ddp": vs_ddp.median() if contestant == DATA_PARALLEL else None,
                }
            )
    return pd.DataFrame(rows)


def markdown(summary: pd.DataFrame) -> str:
    """Return a table of how many times as fast as one core each is, as Markdown."""
    contestants = [c for c in summary["contestant"].unique() if c != SERIAL]
    lines = [
        "| network | stages | one core, ms a batch | " + " | ".join(contestants) + " |",
        "|---|---|---|" + "---|" * len(contestants),
    ]
    for (network, stages), case in summary.groupby(CASE, sort=False):
        rows = case.set_index("contestant")
        cells = [
            f"{row['vs_serial']:.2f} ({row['vs_serial_min']:.2f} to {row['vs_serial_max']:.2f})"
            for row in (rows.loc[contestant] for contestant in contestants)
        ]
        lines.append(
            f"| {network} | {stages} | {rows.loc[SERIAL, 'ms']:,.0f} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"


def verdicts(summary: pd.DataFrame) -> str:
    """Return for each network and number of stages whether a pipeline pays, as Markdown.

    It does if it is faster than what one would do without one: the loop with all cores, and
    DistributedDataParallel.
    """
    lines = []
    for (network, stages), case in summary.groupby(CASE, sort=False):
        faster = case.set_index("contestant")["vs_serial"]
        own = faster[[each for each in PIPELINES if each in faster]]
        others = faster[[each for each in (SERIAL, ALL_CORES, DDP) if each in faster]]
        share = own.max() / others.max()
        pays = f"a pipeline pays: {own.idxmax()} is {share:.2f} times as fast as {others.idxmax()}"
        if share <= 1:
            pays = (
                f"it does not: {others.idxmax()} is {1 / share:.2f} times as fast as {own.idxmax()}"
            )
        lines.append(f"- {network}, {stages} stages: {pays}.\n")
    return "".join(lines)


def page(runs: pd.DataFrame, record: dict[str, Any]) -> str:
    """Return the page of some runs."""
    summary = summarise(runs, record["microbatches"], record["cores"])
    said = {name: record[name] for name in ("cpu", "cores", "microbatches")}
    return PAGE.format(verdicts=verdicts(summary), table=markdown(summary), **said)


def write_page(folder: Path) -> None:
    """Write a folder's README.md."""
    record = json.loads((folder / "networks.json").read_text(encoding="utf-8"))
    runs = pd.read_csv(folder / "networks.csv")
    (folder / "README.md").write_text(page(runs, record), encoding="utf-8")


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
