"""A table of trainings whose losses are given by a formula, as a sweep would give it."""

import math
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from experiments.staleness.sweep import FIRST_TUNING_SEED, VALIDATIONS

Loss = Callable[[str, float, int], float]
"""From method, rate and seed to the loss at the end."""


def trainings(
    loss: Loss,
    arms: Iterable[tuple[str, int]],
    rates: Sequence[float] = (0.25, 0.5, 1.0),
    seeds: int = 3,
    judged_at: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Return two tuning seeds at each rate, and the judging ones where they are asked for."""
    rows = []
    for method, stages in arms:
        tuning = [(r, FIRST_TUNING_SEED + s) for r in rates for s in range(2)]
        judging = [
            (r, s) for r in (rates if judged_at is None else judged_at) for s in range(seeds)
        ]
        for rate, seed in tuning + judging:
            end = loss(method, rate, seed)
            rows.append(
                {
                    "proxy": "images-small",
                    "method": method,
                    "stages": stages,
                    "optimizer": "adamw",
                    "rate": rate,
                    "seed": seed,
                    "updates": 200,
                    "batch_rows": 32,
                    # A straight line from 2 to the end.
                    **{v: 2 + (end - 2) * i / 10 for i, v in enumerate(VALIDATIONS)},
                    "training": end,
                    "by": "oracle",
                    "cpu_s": 36.0,
                }
            )
    return pd.DataFrame(rows)


def parabola(costs: dict[str, float], noise: float = 0.01) -> Loss:
    """Return a loss that is least at the rate 1/2, above 1 by a method's cost; one may diverge."""

    def loss(method: str, rate: float, seed: int) -> float:
        end = 1 + costs[method] + math.log2(rate / 0.5) ** 2 / 10
        # Seeds have an ease of their own, and each method a little luck.
        return end + noise * (10 * math.sin(seed) + math.sin(7 * seed + len(method)))

    return loss
