"""How often NVIDIA's own layout is among the first five that are recommended.

``python -m experiments.published.vendors`` writes ``vendors.csv``: a row a device and one for all.
"""

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pandas as pd
import typer

from experiments.published.fit import known_rows
from experiments.published.sets.megatron_core import BridgeRow
from experiments.published.table import FOLDER
from pipekit.performance.recommend import recommend
from pipekit.progress import progress_bar

FIRST = 5
Degrees = tuple[int, int, int, int]  # tp, cp, ep, pp
Question = tuple[Any, ...]  # model, cluster, batch, and what else recommend takes, by name


def question(row: BridgeRow) -> Question:
    how = ("seq_tokens", row.seq_tokens), ("dtype", row.dtype), ("graphs", row.graphs)
    trains = "trains_weights", row.task != "lora"
    return row.shape, f"{row.gpus}x{row.device}", row.global_batch_samples, (*how, trains)


def first(asked: Question) -> list[Degrees]:
    """Return the degrees of the first layouts that are recommended; none fits: none."""
    *what, how = asked
    try:
        found = recommend(*what, **dict(how)).candidates[:FIRST]
    except ValueError:
        return []
    return [(each.tp, each.cp, each.ep, each.pp) for each in (one.layout for one in found)]


def main() -> None:
    """Write results/reference/published/vendors.csv, and print it: about 4 minutes of CPU."""
    rows: list[BridgeRow] = [one.row for one in known_rows(BridgeRow)]
    asked = list(dict.fromkeys(map(question, rows)))
    with ProcessPoolExecutor() as pool:
        answers = progress_bar(pool.map(first, asked), total=len(asked), desc="vendors")
        found = dict(zip(asked, answers, strict=True))
    own = [(row.tp, row.cp, row.stage_ep, row.pp) in found[question(row)] for row in rows]
    hits = pd.DataFrame({"device": [row.device for row in rows], "first": own})
    frame = pd.concat([hits, hits.assign(device="all")])
    table = frame.groupby("device")["first"].agg(rows="count", first_five="mean").reset_index()
    table.to_csv(FOLDER / "vendors.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
