"""Speed against staleness: all methods as points, for a model, a cluster and a memory cap."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import HTML, display

from pipekit.explore.page.controls import Maker, choice, steps
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Plot, View
from pipekit.explore.timeline import ESTIMATES, MODELS, OPTIMIZERS

TRAININGS = "trainings.csv"
ALIKE = 1e-3  # times that differ by less are alike, as a share
CLUSTERS = ("2bw-v100", "pipedream-a", "pipedream-b")


def see(
    table: pd.DataFrame,
    model: str = "gpt-1.3B",
    cluster: str = "2bw-v100",
    stages: int = 4,
    rows: int = 32,
    memory_gib: float = 16,
    states: str = "Adam",
    proxy: str = "images-small",
    optimizer: str = "adamw",
) -> View:
    from experiments.staleness.speed import Machines, points, speed  # here: torch takes seconds

    machines = Machines(model, cluster, stages, rows, 2 * stages, OPTIMIZERS[states])
    found = points(machines, table, proxy, optimizer)
    if found.empty:
        raise ValueError(
            f"no training of {proxy} with {optimizer} on {stages} stages is complete: run "
            f"experiments/staleness.yaml, or choose another proxy, optimizer or depth"
        )
    gib = found["memory_bytes"] / 2**30
    fits = gib <= memory_gib
    title = f"{model} on {cluster}, {stages} stages, {rows} samples an update, "
    title += f"beside {proxy} with {optimizer}"
    columns = {
        "method": found["arm"],
        "ms a sample": 1e3 * found["seconds"],
        "loss (nats)": found["loss"],
        "± over seeds": found["std"],
        "memory (GB)": found["memory_bytes"] / 1e9,
        "fits": fits.map({True: "yes", False: "no"}),
    }
    return View(
        text=_text(found, fits, memory_gib),
        plots={"speed_and_staleness": Plot(*speed(found[fits], title))} if fits.any() else {},
        table=pd.DataFrame(columns),
        caption="time and memory simulated; loss measured at proxy scale",
    )


def controls(table: pd.DataFrame) -> dict[str, Maker]:
    from experiments.staleness.comparison import OWN  # here, since torch takes seconds

    delayed = table[(table["at"] == OWN) & (table["cost"] != 0)]
    pairs = [(row.proxy, row.optimizer) for row in delayed.itertuples()]
    return {
        "model": choice("model", MODELS),
        "cluster": choice("cluster", CLUSTERS),
        "stages": steps("stages", sorted({*table["stages"], 4} & {4, 8})),
        "rows": steps("samples an update", [16, 32, 64, 128, 256]),
        "memory_gib": steps("memory (GiB)", [4, 8, 12, 16, 24, 32, 48, 80]),
        "states": choice("kept for", OPTIMIZERS),
        "proxy": choice("trained", dict.fromkeys(proxy for proxy, _ in pairs)),
        "optimizer": choice("by", dict.fromkeys(optimizer for _, optimizer in pairs)),
    }


def speed_against_staleness(
    interactive: bool, results_dir: str, reference_dir: str | Path, **start: Any
) -> None:
    told = display(HTML(f"<em>Loading torch and reading {TRAININGS} ...</em>"), display_id=True)
    from experiments.staleness import comparison

    table = comparison.summary(comparison.load(Path(reference_dir) / TRAININGS))
    told.update(HTML(""))
    shown: Any = {"controls": controls(table), "waits_for": ESTIMATES}
    explore(partial(see, table), interactive, results_dir, **shown, **start)


def _text(found: pd.DataFrame, fits: pd.Series, memory_gib: float) -> str:
    if not fits.any():
        return f"Nothing fits into {memory_gib:g} GiB (simulated)."
    best, left_out = found[fits], found["arm"][~fits]
    least, quickest = best.loc[best["loss"].idxmin()], best["seconds"].min()
    fastest = [*best["arm"][best["seconds"] <= (1 + ALIKE) * quickest]]
    others = f" and {len(fastest) - 1} more are" if len(fastest) > 1 else " is"
    out = f"  Not within {memory_gib:g} GiB: {', '.join(left_out)}." if len(left_out) else ""
    return (
        f"{fastest[0]}{others} the fastest, {1e3 * quickest:.3g} ms a sample (simulated), "
        f"and {least['arm']} ends lowest, at {least['loss']:.3f} nats (measured).{out}"
    )
