"""Which orders of messages hang on which channel: the schedules of torch.distributed.pipelining.

    python -m experiments.message_orders [--output FOLDER]

Every table is decided for all timings.  ``orders.csv`` has a row for each table, order and channel;
``shares.csv`` counts them.  A forward takes a slot, and a message half of one.
"""

import math
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from pipekit.progress import progress_bar
from pipekit.schedules.messages import POLICIES, MessageChannel, check_messages, with_messages
from pipekit.schedules.methods.by_name import METHODS

# Torch's classes, by the tables that are equal to theirs (tests/schedules/formats).
NAMES = (
    *("gpipe", "flush", "zb-v", "dualpipe-v"),
    *("looped-bfs", "interleaved", "interleaved-zero-bubble"),
)
CHANNELS = {
    "rendezvous": MessageChannel(),
    "eager:1": MessageChannel(1),
    "eager": MessageChannel(math.inf),
    "asynchronous, a communicator a direction": MessageChannel(waits=False),
    "asynchronous, a communicator a pair": MessageChannel(waits=False, communicators="pair"),
    "asynchronous, a communicator a worker": MessageChannel(waits=False, communicators="worker"),
    "rendezvous with shapes first": MessageChannel(shapes_first=True),
}
WORKERS, MICROBATCHES, LINK = (2, 4, 8, 16), (2, 4, 8, 16, 32, 64), 0.5
DEFAULT = Path("results/reference/messages")


def main(output: Annotated[Path, typer.Option(help="Folder of the tables.")] = DEFAULT) -> None:
    """Decide all tables, and write what becomes of them."""
    output.mkdir(parents=True, exist_ok=True)
    tables = [each for each in product(NAMES, WORKERS, MICROBATCHES) if each[2] >= each[1]]
    bar = progress_bar(tables, unit="table")
    found = pd.DataFrame(row for each in bar for row in _rows(*each))
    found.to_csv(output / "orders.csv", index=False)
    shares = found.groupby(["order", "channel"], sort=False)["becomes"].value_counts().unstack()
    shares = shares.reindex(columns=["ends", "hangs", "mixes up"]).fillna(0).astype(int)
    shares.insert(0, "case", [" / ".join(each) for each in shares.index])
    shares["tables"] = shares[["ends", "hangs", "mixes up"]].sum(axis=1)
    shares.to_csv(output / "shares.csv", index=False)
    typer.echo(shares.to_string(index=False))


def _rows(name: str, workers: int, microbatches: int) -> list[dict[str, Any]]:
    try:
        table = METHODS[name](workers=workers, microbatches=microbatches).take(1)
    except ValueError:  # DualPipe-V needs more microbatches than that
        return []
    rows = []
    for order in POLICIES:
        program = with_messages(table, order)
        for channel, how in CHANNELS.items():
            verdict = check_messages(program, how, link=LINK)
            becomes = "mixes up" if verdict.mixed_up else "ends" if verdict.slots else "hangs"
            longer = verdict.slots / verdict.least - 1 if verdict.slots else math.nan
            case = {"method": name.replace("-", "_"), "workers": workers}
            case |= {"microbatches": microbatches, "order": order, "channel": channel}
            rows.append(case | {"becomes": becomes, "longer": round(longer, 4)})
    return rows


if __name__ == "__main__":
    typer.run(main)
