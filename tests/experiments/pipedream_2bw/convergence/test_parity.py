import math
from statistics import median

import pandas as pd
import pytest

from experiments.pipedream_2bw.convergence import figures, parity
from experiments.pipedream_2bw.convergence.recipe import AdamRecipe


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
    row = parity.summary(both).set_index("method").loc["2BW"]
    assert row["validation"] == pytest.approx(4.5)
    assert row["perplexity"] == pytest.approx(math.exp(4.5))


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


def test_findings_of_a_study_are_read_off_its_course() -> None:
    runs = [
        frame("vanilla", 1.0, 2.0, 3.0, steps=100),
        frame("2BW", 4.0, 4.0, 5.5, loss=1.5, steps=100),
        frame("PipeDream", 4.0, 5.0, 6.0, steps=100),
    ]
    one = pd.concat(runs)
    training = AdamRecipe(8, 100, lr=0.1, warm_up=0.1)
    found = figures.PreTrainings(pd.concat([one, one.assign(network="bert")]), training)
    assert found.seeds == 3
    assert found.behind == pytest.approx({"gpt": 2.5, "bert": 2.5})
    proxy, figure5 = found.parity_findings()
    assert proxy.value == figure5.value == pytest.approx(2.5)
    assert proxy.shown_only.startswith("3 seeds, where the claim asks for")
    assert "GPT +2.5000 nats a byte" in proxy.note
    assert found.gap_finding().value == [0.5, 0.5]
    assert len(list(found.figure5())) == 4
    assert found.rates["method"].unique().tolist() == ["vanilla", "2BW"]
    assert "+3.000 at 0.1" in found.rates_figure().layout.title.text  # of the first seed
    last, first = (
        median(1 / (step * (101 - step)) for step in steps)
        for steps in (range(92, 101), range(11, 20))
    )
    assert found.movement_finding().value[1] == pytest.approx(last / first)
    ratio, share = found.perplexity_findings()
    assert ratio.value == pytest.approx((math.exp(3) + math.exp(2) + math.exp(2.5)) / 3)
    assert len(ratio.repeats) == 3
    assert 0 < share.value < 1
    table = found.perplexities().set_index("network")
    assert table["label"].tolist() == ["measured", "measured", "paper"]
    assert table["perplexity a byte, vanilla"]["gpt"] == pytest.approx(math.exp(2))


def test_the_papers_setup_is_ours() -> None:
    hyperparameters, size = figures.setup_findings()
    assert hyperparameters.value is True
    assert size.value == pytest.approx(355e6, rel=0.01)


def test_a_miss_is_tried_at_the_lowest_learning_rate() -> None:
    def trained(lr: float, behind: float) -> pd.DataFrame:
        vanilla = frame("vanilla", 1.0, 1.1, 1.2, 1.3, 1.4, loss=1.0)
        late = frame("2BW", *(end + behind for end in (1.0, 1.1, 1.2, 1.3, 1.4)), loss=1.0 + behind)
        return pd.concat([vanilla, late]).assign(lr=lr)

    high, low = trained(0.1, behind=1.0), trained(0.01, behind=0.1)
    high.loc[(high["method"] == "2BW") & (high["step"] == 1), "loss"] = 1.5
    found = figures.PreTrainings(pd.concat([high, low]), AdamRecipe(8, 10, lr=0.1))
    made = [*found.parity_findings(), *found.perplexity_findings(), found.gap_finding()]
    assert [len(each.causes) for each in made] == [1] * 5
    assert {each.causes[0].changed for each in made} == {"a learning rate of 0.01"}
    apart, _, ratio, share, gap = made
    assert [apart.value, apart.causes[0].value] == pytest.approx(
        [1 / 0.1**0.5 / 0.5, 0.1 * 2 / 0.1**0.5]
    )
    assert [ratio.value, ratio.causes[0].value] == pytest.approx([math.e, math.exp(0.1)])
    assert share.value < share.causes[0].value
    assert gap.value == pytest.approx([0.5, 1.0])
    assert gap.causes[0].value == pytest.approx([0.1, 0.1])
    alone = figures.PreTrainings(low, AdamRecipe(8, 10, lr=0.01))
    assert alone.gap_finding().causes == ()
