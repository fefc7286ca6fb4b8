"""How often NVIDIA's own layout is among the first five that are recommended.

``python -m experiments.published.vendors`` writes ``vendors.csv``: a row a device and one for all.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import typer

from experiments.published.fit import known_rows
from experiments.published.sets.megatron_core import BRIDGE, BridgeRow, bridge_shape, dtype, graphs
from experiments.published.table import FOLDER
from pipekit.performance.recommend import recommend
from pipekit.performance.shapes import Shape
from pipekit.progress import progress_bar

FIRST = 5
Degrees = tuple[int, int, int, int]
"""tp, cp, ep, pp."""


def chosen(row: BridgeRow) -> Degrees:
    """Return a row's degrees; one table prints more expert ranks than a stage has."""
    pp = row.pp or 1
    return row.tp or 1, row.cp or 1, min(row.ep or 1, row.gpus // pp), pp


Question = tuple[Shape, str, int, int, str, bool]
"""A model, a cluster, a batch, tokens of a sequence, the dtype of products, and CUDA graphs."""


def question(row: BridgeRow) -> Question:
    """Return what is asked for a row."""
    cluster, batch = f"{row.gpus}x{row.device}", row.global_batch_samples
    number = dtype(row.precision)
    return bridge_shape(row), cluster, batch, row.seq_tokens, number, graphs(row)


def first(asked: Question) -> list[Degrees]:
    """Return the degrees of the first layouts that are recommended; none fits: none."""
    model, cluster, batch, seq_tokens, dtype, graphs = asked
    try:
        found = recommend(
            model, cluster, batch, seq_tokens=seq_tokens, dtype=dtype, graphs=graphs
        ).candidates
    except ValueError:
        return []
    layouts = [each.layout for each in found[:FIRST]]
    return [(each.tp, each.cp, each.ep, each.pp) for each in layouts]


def compared() -> list[dict[str, str | bool]]:
    """Return the device of each row, and whether its layout is among the first."""
    rows: list[BridgeRow] = [one.row for one in known_rows(BRIDGE)]
    asked = list(dict.fromkeys(map(question, rows)))
    with ProcessPoolExecutor() as pool:
        answers = progress_bar(pool.map(first, asked), total=len(asked), desc="vendors")
        found = dict(zip(asked, answers, strict=True))
    return [{"device": row.device, "first": chosen(row) in found[question(row)]} for row in rows]


def write(folder: Path) -> pd.DataFrame:
    """Write and return how many rows there are, and the share whose layout is among the first."""
    rows = pd.DataFrame(compared())
    frame = pd.concat([rows, rows.assign(device="all")])
    table = frame.groupby("device")["first"].agg(rows="count", first_five="mean").reset_index()
    table.to_csv(folder / "vendors.csv", index=False, float_format="%.4g")
    return table


def main() -> None:
    """Write results/reference/published/vendors.csv, and print it: about 4 minutes of CPU."""
    print(write(FOLDER).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
