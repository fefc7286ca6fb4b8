"""Kill and interrupt trainings at random: none may lose a bit, or leave anything behind.

    python -m experiments.attacks                          # all kinds; make attack
    python -m experiments.attacks kills --tries 20 --seed 7 --output results/reference/faults

A seed repeats the attacks; the machine decides at which moment of a training they come.
"""

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from experiments.attacks import interrupts, kills
from experiments.benchmarks.harness import conclude, measured
from pipekit.choices import require_choice
from pipekit.engine.transports.processes.forkserver import forkserver

KINDS = {  # what yields a row a try, how many tries, and two columns to count by
    "kills": (kills.attack, 60, "end", "resumed over"),
    "interrupts": (interrupts.attack, 200, "way", "outcome"),
}


def main(
    kinds: Annotated[list[str] | None, typer.Argument(help=", ".join(KINDS))] = None,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Of each kind.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random draws.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the tries and provenance.", show_default=False)
    ] = None,
) -> None:
    """Attack trainings at random; the exit code is 1 if any attack shows a fault."""
    for name in kinds or ():
        require_choice("kinds", name, KINDS)
    # A file left there shows; the fork server's socket goes with this process.
    os.environ["TMPDIR"] = temporary = tempfile.mkdtemp(prefix="pipekit-attacks-")
    forkserver()  # which starts workers, and stays until this process ends
    tempfile.tempdir = temporary
    faults, record = 0, measured(parameters={"seeds": [seed]})
    try:
        for name in kinds or KINDS:
            attack, usual, by, outcome = KINDS[name]
            wanted, rows = tries or usual, []
            # Ctrl-C stops a kind and keeps its tries.
            with tqdm(total=wanted, unit="try", desc=name) as bar, suppress(KeyboardInterrupt):
                for row in attack(wanted, seed):
                    rows.append(row)
                    if row["failure"]:
                        bar.write(f"FAULT: {row}", file=sys.stderr)
                    bar.update()
            if not rows:
                continue
            frame = pd.DataFrame(rows)
            faults += int((frame["failure"] != "").sum())
            print(f"{len(frame)} {name} (measured); {faults} faults so far")
            print(pd.crosstab(frame[by], frame[outcome], margins=True).to_string())
            conclude(name, frame, record, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    typer.run(main)
