"""Section 3's formulas beside simulated and measured bytes."""

from dataclasses import replace

import pytest

from experiments.pipedream_2bw.formulas import EqualStages, counted
from experiments.pipedream_2bw.systems import TABLES
from pipekit.plans import Recompute

SMALL = EqualStages("GPipe", 2, 4, 1, "always", blocks=2, hidden=8, sequence=4)


def test_the_parts_are_those_of_the_blocks() -> None:
    weights, _, inputs = SMALL.sizes
    assert weights == (12 * 8**2 + 13 * 8) * 4, "a block of 12 h^2 + 13 h parameters"
    assert inputs == 1 * 4 * 8 * 4


@pytest.mark.parametrize("recompute", ["always", "never"])
@pytest.mark.parametrize(
    ("system", "versions", "in_flight"),
    [("inter-layer MP", 1, 1), ("PipeDream-Flush", 1, 2), ("PipeDream-2BW", 2, 2), ("GPipe", 1, 4)],
)
def test_the_formulas_are_the_papers_and_the_accounts_agree(
    system: str, versions: int, in_flight: int, recompute: Recompute
) -> None:
    case = replace(SMALL, system=system, recompute=recompute)
    weights, activations, inputs = case.sizes
    whole = 1 if recompute == "always" else in_flight
    assert case.formula() == versions * weights + whole * activations + in_flight * inputs
    assert counted(case.simulated()) == case.formula()


@pytest.mark.parametrize("system", TABLES)
def test_training_holds_what_the_formulas_say(system: str) -> None:
    case = replace(SMALL, system=system)
    held = case.trained()
    assert counted(held) == pytest.approx(case.formula(), rel=0.01)
    assert max(held.peak_bytes) > counted(held), "gradients come on top"


def test_recomputed_microbatches_keep_one_input_each() -> None:
    for system, in_flight in (("PipeDream-2BW", (2, 1)), ("GPipe", (4, 4))):
        case = replace(SMALL, system=system)
        kept = case.trained().frame.groupby("worker")["activations"].max()
        assert case.in_flight == tuple(kept / case.sizes.inputs) == in_flight
