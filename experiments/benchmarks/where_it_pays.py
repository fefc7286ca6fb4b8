"""What networks.py measured, as tables: who is how many times as fast as one core, and when.

    python experiments/benchmarks/where_it_pays.py results/reference/benchmarks

renders the table of a folder's README.md from its networks.csv.
"""

import re
import sys
from pathlib import Path

import pandas as pd

SERIAL, ALL_CORES, LIMIT = "serial, one core", "serial, all cores, whole batch", "limit"
DDP, DATA_PARALLEL = "DDP", "pipekit, one stage on all"
PIPELINES = ("pipekit, threads", "pipekit, processes", "torch pipelining")
CASE = ["network", "stages"]
_TABLE = re.compile(r"(?<=<!-- measured -->\n).*(?=<!-- end -->)", re.DOTALL)


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of a batch's time in which a stage of a balanced pipeline is idle."""
    return (stages - 1) / (microbatches + stages - 1)


def summarise(runs: pd.DataFrame, microbatches: int, cores: int) -> pd.DataFrame:
    """Return a row for each network, number of stages and contestant: medians and ranges.

    Every ratio is between runs of one repeat.

    Args:
        runs: network, stages, repeat, contestant and seconds of a batch, a row a run.
        microbatches: of each batch.
        cores: of the machine: with more stages than that there is no limit x (1 - bubble).
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


def rendered(page: str, summary: pd.DataFrame) -> str:
    """Return a page with its measured table as the summary has it."""
    return _TABLE.sub(lambda _: markdown(summary), page)


if __name__ == "__main__":
    import json

    folder = Path(sys.argv[1])
    record = json.loads((folder / "networks.json").read_text(encoding="utf-8"))
    measured = pd.read_csv(folder / "networks.csv")
    found = summarise(measured, record["microbatches"], record["cores"])
    page = folder / "README.md"
    page.write_text(rendered(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(found.to_string())
