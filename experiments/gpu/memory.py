"""The peak of every stage's tensors, measured beside its prediction."""

import warnings

from rich.console import Console
from rich.table import Table

from experiments.gpu.network import (
    BATCHES,
    METHODS,
    MICROBATCHES,
    batch,
    network,
    pipeline,
)
from pipekit import Plan, Watch, measure_memory, profile, simulate

LIMIT = 0.05


def memory(places: list[str], width: int, rows: int) -> bool:
    """Compare the peaks of all stages with their prediction; return whether all are near it."""
    table = Table(title=f"peak bytes of a stage (MB), measured and simulated; limit {LIMIT:.0%}")
    for column in ("schedule", "stage", "measured", "simulated", "apart", "allocator"):
        table.add_column(column)
    good = True
    model = network(width)
    with warnings.catch_warnings():  # of times, which are not looked at here
        warnings.simplefilter("ignore")
        measured = profile(model, batch(rows)[0], places[0], repeats=2)
    for method, schedule in METHODS.items():
        pipe = pipeline(model, method, places)
        found = measure_memory(
            pipe.train([batch(rows * MICROBATCHES)] * BATCHES, watch=Watch(memory=True))
        )
        plan = Plan.by_hand(pipe.balance or [], rows=rows)
        ours = simulate(schedule.take(BATCHES), measured, plan, optimizer_states=1).memory
        assert ours is not None
        for stage, (here, there) in enumerate(zip(found.peak_bytes, ours.peak_bytes, strict=True)):
            apart = there / here - 1
            good &= abs(apart) <= LIMIT
            allocated = (found.allocated_bytes or {}).get(stage)
            table.add_row(
                method,
                str(stage),
                f"{here / 1e6:.1f}",
                f"{there / 1e6:.1f}",
                f"{apart:+.1%}",
                f"{allocated / 1e6:.1f}" if allocated else "",
            )
    Console().print(table)
    return good
