"""CPU time of many short calls of ``train``, beside one long one.

    python experiments/benchmarks/calls.py

50 calls with one batch each and one call with 50 take turns on the same pipeline, whose workers are
there already; what is told is the processor time of this process and of all its children, and of
each pair the quotient.  To reach: a median of 1.3.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from outcome import conclude, wide_console
from rich.table import Table
from torch import nn

from pipekit import Pipeline, Watch, models, schedules
from pipekit.host.provenance import provenance

METHODS: dict[str, schedules.Schedule] = {
    "flush": schedules.flush(2, 4),
    "2bw": schedules.two_bw(2, 4),
    "pipedream": schedules.pipedream(2),
}


def cpu_seconds() -> float:
    """Return the processor time of this process and of all below it that are alive."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def took(pipeline: Pipeline, calls: Iterable[list[Any]]) -> float:
    """Return the processor time of some calls, in s."""
    start = cpu_seconds()
    for batches in calls:
        pipeline.train(batches, watch=Watch(trace=False))
    return cpu_seconds() - start


def main(
    calls: Annotated[int, typer.Option(help="Short calls of a pair.")] = 50,
    pairs: Annotated[int, typer.Option(help="Pairs of each pipeline.")] = 9,
    width: Annotated[int, typer.Option(help="Of the network's layers.")] = 512,
    rows: Annotated[int, typer.Option(help="Of a batch.")] = 128,
    output: Annotated[Path | None, typer.Option(help="Folder for calls.csv and .json.")] = None,
) -> None:
    """Measure what a call costs besides its batches."""
    load = os.getloadavg()[0]
    record = provenance("measured", calls=calls, width=width, rows=rows, load_average_at_start=load)
    found: list[dict[str, Any]] = []
    console = wide_console()
    shown = Table(title=f"{calls} calls with one batch over one with {calls}, CPU time (measured)")
    for heading in ("transport", "method", "one call, s", "median", "least", "most"):
        shown.add_column(heading, justify="right")
    batches = [(torch.randn(rows, width), torch.randn(rows, width)) for _ in range(calls)]
    for transport in ("threads", "distributed"):
        for name, method in METHODS.items():
            pipeline = Pipeline(
                models.mlp(width, 4),
                method,
                optimizer=partial(torch.optim.SGD, lr=0.01),
                loss=nn.MSELoss(),
                transport=transport,
            )
            took(pipeline, [batches[:2], batches[:2]])  # workers are there from here on
            for pair in range(pairs):
                one = took(pipeline, [batches])
                many = took(pipeline, ([batch] for batch in batches))
                row = {"transport": transport, "method": name, "pair": pair}
                found.append(row | {"one_s": one, "many_s": many, "quotient": many / one})
            pipeline.close()
            own = pd.DataFrame(found[-pairs:])
            quotients = own["quotient"]
            numbers = (median(quotients), quotients.min(), quotients.max())
            shown.add_row(
                transport, name, f"{median(own['one_s']):.2f}", *(f"{n:.2f}" for n in numbers)
            )
    console.print(shown)
    conclude(console, "calls", pd.DataFrame(found), record, output)


if __name__ == "__main__":
    typer.run(main)
