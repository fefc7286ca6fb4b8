"""Compare two commits to the bit: the same small trainings by an older one and by this checkout.

    python -m experiments.bits main~3
    python -m experiments.bits d2ef406 --only 2bw

Each commit trains its own cases in a process of its own, one operator thread a worker; those are
compared whose names both have.  Told is each loss, weight, buffer, optimizer state and output that
differs; the status is 1 if any does, or if either fails.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from experiments.benchmarks.harness import ROOT, check_out
from experiments.bits.cases import cases

HERE = Path(__file__).parent
SHOWN = 5  # differences told of a case

Outcome = dict[str, str]


def trained(checkout: Path, names: Sequence[str], bar: "tqdm[Any]") -> dict[str, Outcome]:
    """Train a checkout's cases of these names with its pipekit; return what came of each."""
    folder = checkout / HERE.relative_to(ROOT)
    with subprocess.Popen(
        [sys.executable, str(folder / "drive.py"), *names],
        env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        cwd=folder,  # worker processes look for pipekit here before anywhere else
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        found = {}
        for line in driver.stdout or ():
            name, found[name] = json.loads(line)
            bar.update()
    if driver.returncode:
        raise SystemExit(f"the trainings with {checkout} ended with status {driver.returncode}")
    return found


def differences(older: Outcome, newer: Outcome) -> list[str]:
    """Return where two outcomes of a case differ; a case that fails differs in any case."""
    if failed := [
        f"{which} fails: {outcome['error']}"
        for which, outcome in (("the older commit", older), ("this checkout", newer))
        if "error" in outcome
    ]:
        return failed
    both = older.keys() | newer.keys()
    return sorted(name for name in both if older.get(name) != newer.get(name))


def main(
    older: Annotated[str, typer.Argument(help="Commit to compare this checkout with.")],
    only: Annotated[str, typer.Option(help="Only cases with this in their names.")] = "",
) -> None:
    """Train by an older commit and by this checkout, and compare to the bit."""
    names = [case.name for case in cases() if only in case.name]
    if not names:
        raise typer.BadParameter(f"no case has {only!r} in its name", param_hint="--only")
    with (
        tempfile.TemporaryDirectory(prefix="pipekit-bits-") as folder,
        tqdm(total=2 * len(names), unit="training") as bar,
        ThreadPoolExecutor() as both,
    ):
        tree = check_out(older, Path(folder))
        here = both.submit(trained, ROOT, names, bar)
        found = trained(tree, names, bar)
        before = {name: found.get(name, {"error": "it has no such case"}) for name in names}
        now = here.result()
    new = [name for name in names if "error" in before[name] and "error" not in now[name]]
    compared = {name: differences(before[name], now[name]) for name in names if name not in new}
    wrong = {name: places for name, places in compared.items() if places}
    for name, places in wrong.items():
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        print(f"{name}: {', '.join(places[:SHOWN])}{more}")
    print(f"{len(compared)} trainings, {len(wrong)} differ from {older}")
    if new:
        print(f"{len(new)} fail there or are missing, and not here: {', '.join(new)}")
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
