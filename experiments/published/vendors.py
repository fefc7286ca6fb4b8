"""How often NVIDIA's own layout is among the first five that are recommended.

``python -m experiments.published.vendors`` writes ``vendors.csv``: a row a device and one for all.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pandas as pd

from experiments.published.fit import known_rows
from experiments.published.sets.megatron_core import BRIDGE, BridgeRow, bridge_shape, dtype
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


@lru_cache
def recommended(
    model: Shape, cluster: str, batch: int, seq_tokens: int, dtype: str
) -> list[Degrees]:
    """Return the degrees of the layouts that are recommended, the fastest first."""
    try:
        found = recommend(model, cluster, batch, seq_tokens=seq_tokens, dtype=dtype).candidates
    except ValueError:  # nothing fits
        return []
    layouts = (each.layout for each in found)
    return [(each.tp, each.cp, each.ep, each.pp) for each in layouts]


def compared() -> Iterator[dict[str, str | bool]]:
    """Yield the device of each row, and whether its layout is among the first."""
    for one in progress_bar(known_rows(BRIDGE), desc="vendors"):
        row: BridgeRow = one.row
        cluster, batch = f"{row.gpus}x{row.device}", row.global_batch_samples
        found = recommended(bridge_shape(row), cluster, batch, row.seq_tokens, dtype(row.precision))
        yield {"device": row.device, "first": chosen(row) in found[:FIRST]}


def write(folder: Path) -> pd.DataFrame:
    """Write and return how many rows there are, and the share whose layout is among the first."""
    rows = pd.DataFrame(compared())
    frame = pd.concat([rows, rows.assign(device="all")])
    table = frame.groupby("device")["first"].agg(rows="count", first_five="mean").reset_index()
    table.to_csv(folder / "vendors.csv", index=False, float_format="%.4g")
    return table


if __name__ == "__main__":
    print(write(FOLDER).to_string(index=False))
