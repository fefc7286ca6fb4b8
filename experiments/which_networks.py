"""Which networks enter a pipeline: a page of what networks.py has found.

    python experiments/which_networks.py results/reference/networks

writes the folder's README.md from its tables, as networks.py does itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

PAGE = """\
# Which networks enter

Each network of `make models` is recorded as it is. {verdict}
"Equal": two stages of PipeDream-Flush end with the weights and losses of a plain loop, to the bit.
A stage may begin at each cut. Times are of a forward and a backward on one core, plain and
converted, the least of several (measured on {cpu}, {beside}; torch {torch}, torchvision
{torchvision}, transformers {transformers}).

{known}
## Drawn at random

From torchvision's classifiers and transformers' causal language models, of those that no test
names, with seed {seed}; tried without preparation.

{drawn}
## What is refused

What stands between a model's blocks, and the sentence that it gets; within a block, recording
leaves everything as it is. Last, what is refused when training begins.

{refused}
    make networks
"""
DRAWN_FROM = ("torchvision ", "transformers ")
"""How the names of networks begin that were drawn."""


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    shown = table.map(lambda cell: "" if pd.isna(cell) else str(cell).replace("|", "\\|"))
    lines = [list(table.columns), ["---"] * len(table.columns), *shown.to_numpy().tolist()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def entered(networks: pd.DataFrame) -> pd.DataFrame:
    """Return what became of each network, a row each, to be shown."""
    outcome = networks["outcome"].mask(
        networks["sentence"] != "", networks["outcome"] + ": " + networks["sentence"]
    )
    shown = networks[["network"]].copy()
    for column in ("layers", "cuts"):
        shown[column] = networks[column].map(lambda count: f"{count:.0f}", na_action="ignore")
    shown["equal?"] = outcome
    for column, title in (("ms_plain", "ms plain"), ("ms_converted", "ms converted")):
        shown[title] = networks[column].map(milliseconds, na_action="ignore")
    return shown


def milliseconds(ms: float) -> str:
    """Return a time with three digits at least."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def page(networks: pd.DataFrame, refused: pd.DataFrame, record: dict[str, Any]) -> str:
    """Return the page of a run of networks.py."""
    networks = networks.fillna({"sentence": ""})
    is_drawn = networks["network"].str.startswith(DRAWN_FROM)
    equal = networks[~is_drawn]["outcome"] == "equal"
    load = record.get("load_average_at_start")
    said = {name: record[name] for name in ("cpu", "torch", "torchvision", "transformers", "seed")}
    return PAGE.format(
        beside="beside other work" if load is None else f"load {load:.1f} at the start",
        verdict=f"{equal.sum()} of {len(equal)} enter.",
        known=markdown(entered(networks[~is_drawn])),
        drawn=markdown(entered(networks[is_drawn])),
        refused=markdown(refused),
        **said,
    )


def write_page(folder: Path) -> None:
    """Write a folder's README.md."""
    record = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    tables = (pd.read_csv(folder / f"{name}.csv") for name in ("networks", "refused"))
    (folder / "README.md").write_text(page(*tables, record), encoding="utf-8")


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
