import math
from statistics import median

import pandas as pd
import pytest

from experiments.pipedream_2bw import parity
from experiments.pipedream_2bw.settings import AdamRecipe


def frame(method: str, *ends: float, loss: float = 1.0, steps: int = 10) -> pd.DataFrame:
    """What trainings would look like whose validation falls from 5 to ``ends``, one a seed."""
    return pd.DataFrame(
        {
            **{"network": "gpt", "method": method, "lr": 0.1, "seed": seed, "step": step},
            "loss": loss if step else math.nan,
            "validation": 5 + (end - 5) * step / steps,
            "moved": 1 / step if step else math.nan,
        }
        for seed, end in enumerate(ends)
        for step in range(steps + 1)
    )


def test_a_distance_is_counted_in_vanillas_deviations() -> None:
    both = pd.concat([frame("vanilla", 1.0, 2.0, 3.0), frame("2BW", 4.0, 4.0, 5.5)])
    assert parity.distance(both, "2BW") == pytest.approx(2.5)


def test_gaps_are_between_equal_seeds_and_steps() -> None:
    late = frame("2BW", 1.0, 1.0, loss=1.25)
    late.loc[late["step"] == 1, "loss"] = 0.5
    both = pd.concat([frame("vanilla", 1.0, 1.0), late])
    found = parity.gaps(both)
    assert len(found) == 20
    assert found.loc[found["step"] == 1, "gap"].tolist() == [-0.5, -0.5]
    assert parity.early_and_late(both) == (0.5, 0.25)


def test_movement_is_that_after_warm_up() -> None:
    moved = frame("vanilla", 1.0, steps=100)
    middle, ratio = parity.movement(moved, AdamRecipe(8, 100, warm_up=0.2))
    assert middle == pytest.approx((1 / 60 + 1 / 61) / 2)  # of steps 21 to 100
    # Over the learning rate, which falls from step 21 to step 100 in a straight line.
    last, first = (
        median(1 / (step * (101 - step)) for step in steps)
        for steps in (range(93, 101), range(21, 29))
    )
    assert ratio == pytest.approx(last / first)


def test_what_moves_as_the_learning_rate_does_does_not_fall() -> None:
    recipe = AdamRecipe(8, 100, warm_up=0.2)
    moved = frame("vanilla", 1.0, steps=100)
    moved["moved"] = [math.nan, *(recipe.share_of_lr(step) for step in range(100))]
    assert parity.movement(moved, recipe)[1] == pytest.approx(1)


@pytest.mark.parametrize(("end", "share"), [(3.0, 0.5), (1.0, 1.0), (4.0, 0.25)])
def test_vanilla_is_where_2bw_ends_after_a_share_of_its_steps(end: float, share: float) -> None:
    both = pd.concat([frame("vanilla", 1.0), frame("2BW", end)])
    assert parity.matching_share(both) == pytest.approx(share)


def test_there_is_no_such_share_where_2bw_ends_lower() -> None:
    assert math.isnan(parity.matching_share(pd.concat([frame("vanilla", 1.0), frame("2BW", 0.5)])))
