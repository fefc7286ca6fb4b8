"""Faults that nobody has listed are found, too, and have a class."""

import pytest

from pipekit.parity.verdict import Fault
from tests.parity import unlisted
from tests.parity.small import Small
from tests.parity.test_faults import verdict_on

FOUND: list[tuple[type[Small], str, str]] = [
    (unlisted.TokensOfReplicas, "tokens", Fault.PER_MICROBATCH),
    (unlisted.IgnoredTokensCount, "tokens", Fault.TERMS),
    (unlisted.LabelsShiftedTwice, "tokens", Fault.TARGETS),
    (unlisted.LastRowsDropped, "odd", Fault.LOST),
    (unlisted.DividedByWorld, "dense", Fault.TIMES_STAGES),
    (unlisted.ReducedEachMicrobatch, "dense", Fault.MICROBATCHES),
    (unlisted.ReducedOverStages, "dense", Fault.MIXED),
    (unlisted.TiedCountTwiceInTheNorm, "tied", Fault.CLIPPED),
    (unlisted.DecayOfOneStage, "dense", Fault.DECAY),
    (unlisted.UpdateBeforeTheLastBackward, "dense", Fault.LOST),
    (unlisted.InputDetached, "dense", Fault.NEVER),
    (unlisted.StageFrozen, "dense", Fault.NEVER),
    (unlisted.SecondTensorLost, "skips", Fault.CUT),
    (unlisted.SecondTensorLost, "moe", Fault.CUT),
    (unlisted.OtherMasksInRecomputation, "dropout", Fault.DROPOUT),
    (unlisted.SumsInBfloat16, "dense", Fault.ROUNDED),
    (unlisted.WeightsInBfloat16, "dense", Fault.ROUNDED),
    (unlisted.Nesterov, "dense", Fault.OPTIMIZER),
    (unlisted.EverySecondBatch, "dense", Fault.SEVERAL_BATCHES),
    (unlisted.GradientOfANeighbour, "dense", Fault.HANDED),
    (unlisted.InputOfANeighbour, "dense", Fault.HANDED),
    (unlisted.StagesInAnotherOrder, "dense", Fault.ORDER),
    (unlisted.StageTwice, "dense", Fault.ORDER),
    (unlisted.ShardNotReduced, "dense", Fault.LOST),
    (unlisted.TiedScaledInTheMiddle, "tied", Fault.AVERAGED_TWICE),
    (unlisted.TargetsLate, "dense", Fault.TARGETS),
    (unlisted.LastLostInEverySecondBatch, "dense", Fault.LOST),
    (unlisted.ClippedBeforeTheSum, "dense", Fault.CLIPPED),
    (unlisted.InEvaluationMode, "batch-norm", Fault.BATCH_NORM),
    (unlisted.LastStageStale, "dense", Fault.STALE.format("1 update")),
    (unlisted.CopyOfTiedLeft, "tied", Fault.NEVER),
    (unlisted.Transposed, "dense", Fault.LAYOUT),
    (unlisted.LabelsSmoothed, "dense", Fault.OTHER_LOSS),
    (unlisted.IgnoredTrained, "tokens", Fault.TERMS),
    (unlisted.SecondTensorScaled, "skips", Fault.AVERAGED_TWICE),
    (unlisted.DecoupledDecay, "dense", Fault.DECAY),
    (unlisted.EachRowsMean, "tokens", Fault.PER_MICROBATCH),
    (unlisted.NoSuchClass, "dense", Fault.UNKNOWN),
]


@pytest.mark.long
@pytest.mark.parametrize(("adapter", "model", "fault"), FOUND)
def test_a_fault_is_found_and_has_a_class(adapter: type[Small], model: str, fault: str) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert fault in verdict.findings[0].classes, verdict.text
