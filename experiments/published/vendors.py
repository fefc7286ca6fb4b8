"""How often NVIDIA's own layout is among the first five that are recommended.

``python -m experiments.published.vendors`` writes ``vendors.csv``: a row a device and one for all.
"""

from concurrent.futures import ProcessPoolExecutor

import pandas as pd
import typer

from experiments.published.fit import known_rows
from experiments.published.sets.megatron_core import BridgeRow
from experiments.published.table import FOLDER
from pipekit.performance.recommend import recommend
from pipekit.progress import progress_bar

FIRST = 5


def among_first(row: BridgeRow) -> bool:
    """Return whether a row's degrees are among the first that are recommended; none may fit."""
    try:
        found = recommend(
            row.shape,
            f"{row.gpus}x{row.device}",
            row.global_batch_samples,
            seq_tokens=row.seq_tokens,
            dtype=row.dtype,
            graphs=row.graphs,
            trains_weights=row.task != "lora",
        )
    except ValueError:
        return False
    told = (each.layout for each in found.candidates[:FIRST])
    degrees = [(each.tp, each.cp, each.ep, each.pp) for each in told]
    return (row.tp, row.cp, row.stage_ep, row.pp) in degrees


def main() -> None:
    """Write results/reference/published/vendors.csv, and print it: about 8 minutes of CPU."""
    rows: list[BridgeRow] = [one.row for one in known_rows(BridgeRow)]
    with ProcessPoolExecutor() as pool:
        own = list(progress_bar(pool.map(among_first, rows), total=len(rows), desc="vendors"))
    hits = pd.DataFrame({"device": [row.device for row in rows], "first": own})
    frame = pd.concat([hits, hits.assign(device="all")])
    table = frame.groupby("device")["first"].agg(rows="count", first_five="mean").reset_index()
    table.to_csv(FOLDER / "vendors.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
