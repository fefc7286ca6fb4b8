"""Faults that nobody has listed are found, too, and have a class."""

import pytest

from pipekit.parity import faults
from tests.parity import unlisted
from tests.parity.small import Small
from tests.parity.test_faults import verdict_on

FOUND: list[tuple[type[Small], str, str]] = [
    (unlisted.TokensOfReplicas, "tokens", faults.PER_MICROBATCH),
    (unlisted.IgnoredTokensCount, "tokens", faults.TERMS),
    (unlisted.LabelsShiftedTwice, "tokens", faults.TARGETS),
    (unlisted.LastRowsDropped, "odd", faults.LOST),
    (unlisted.DividedByWorld, "dense", faults.TIMES_STAGES),
    (unlisted.ReducedEachMicrobatch, "dense", faults.MICROBATCHES),
    (unlisted.ReducedOverStages, "dense", faults.MIXED),
    (unlisted.TiedCountTwiceInTheNorm, "tied", faults.CLIPPED),
    (unlisted.DecayOfOneStage, "dense", faults.DECAY),
    (unlisted.UpdateBeforeTheLastBackward, "dense", faults.LOST),
    (unlisted.InputDetached, "dense", faults.NEVER),
    (unlisted.StageFrozen, "dense", faults.NEVER),
    (unlisted.SecondTensorLost, "skips", faults.CUT),
    (unlisted.SecondTensorLost, "moe", faults.CUT),
    (unlisted.OtherMasksInRecomputation, "dropout", faults.DROPOUT),
    (unlisted.SumsInBfloat16, "dense", faults.ROUNDED),
    (unlisted.WeightsInBfloat16, "dense", faults.ROUNDED),
    (unlisted.Nesterov, "dense", faults.OPTIMIZER),
    (unlisted.EverySecondBatch, "dense", faults.SEVERAL_BATCHES),
    (unlisted.GradientOfANeighbour, "dense", faults.HANDED),
    (unlisted.InputOfANeighbour, "dense", faults.HANDED),
    (unlisted.StagesInAnotherOrder, "dense", faults.ORDER),
    (unlisted.StageTwice, "dense", faults.ORDER),
    (unlisted.ShardNotReduced, "dense", faults.LOST),
    (unlisted.TiedScaledInTheMiddle, "tied", faults.AVERAGED_TWICE),
    (unlisted.NoSuchClass, "dense", faults.UNKNOWN),
]


@pytest.mark.long
@pytest.mark.parametrize(("adapter", "model", "fault"), FOUND)
def test_a_fault_is_found_and_has_a_class(adapter: type[Small], model: str, fault: str) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert fault in verdict.findings[0].classes, verdict.text
