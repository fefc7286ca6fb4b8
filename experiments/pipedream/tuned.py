"""Trainings at rates that are tuned for each method, as PipeDream's authors did (section 5.1).

    python -m experiments.pipedream.tuned results/reference/pipedream

Each method of Figures 10 to 12 tries rates, each twice the one before, on tuning seeds, and is
judged on others at the rate that takes it soonest to the target.  A rate at the border is tried
beyond.
"""

from itertools import product
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments import study
from experiments.pipedream.convergence import FIGURES, FIRST_TUNING_SEED, Digits, train
from pipekit.host.provenance import provenance, write

TARGET, EPOCHS, SEEDS = 80.0, 10, 5
RATES = tuple(0.01 * 2.0**power for power in range(-1, 3))
TUNING_SEEDS = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + 2)


def tuned(trainings: study.Trainings[Digits], method: str) -> float:
    """Return the rate at which a method is the soonest at the target, in the mean."""
    rates = list(RATES)
    while True:
        tried = trainings.run(
            [Digits(method, seed, EPOCHS, lr=rate) for rate in rates for seed in TUNING_SEEDS]
        )
        ends = study.each_seed(tried, ["lr", "seed"], TARGET)
        best = float(ends.groupby("lr")["epochs"].mean().idxmin())
        beyond = {min(rates): best / 2, max(rates): best * 2}
        if best not in beyond:
            return best
        rates.append(beyond[best])


def main(folder: Annotated[Path, typer.Argument(help="gets tuned.csv, provenance.json")]) -> None:
    """Train what the folder's ``trainings`` have not yet, and write the judged courses."""
    methods = dict.fromkeys(arm.method for arms in FIGURES.values() for arm in arms)
    trainings = study.Trainings(train, folder / "trainings")
    rates = {method: tuned(trainings, method) for method in methods}
    judged = [Digits(m, seed, EPOCHS, lr=rates[m]) for m, seed in product(methods, range(SEEDS))]
    found: pd.DataFrame = trainings.run(judged)
    found.to_csv(folder / "tuned.csv", index=False, float_format="%.6g")
    about = provenance("measured", tuning_seeds=[*TUNING_SEEDS], target=TARGET, rates=rates)
    write(folder / "provenance.json", about)


if __name__ == "__main__":
    typer.run(main)
