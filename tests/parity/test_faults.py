"""Every fault is found and its class named: published ones, and all that the judge knows."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.parity.adapter import train
from pipekit.parity.judge import judged
from pipekit.parity.verdict import Fault
from tests.parity import published, unlisted
from tests.parity.small import MeanOfMeans, Small, Uncleared, unstated, verdict_on
from tests.sampled import sampled

PUBLISHED: list[tuple[type[Small], str, str]] = [
    (published.Torchtitan2972, "tokens", Fault.SUMMED),
    (published.Torchtitan1732, "dense", Fault.AVERAGED_TWICE),
    (published.Torchtitan963, "dense", Fault.MISSING),
    (published.Torchtitan771, "dense", Fault.NEVER),
    (published.DeepSpeed7773, "dense", Fault.SUMMED),
    (published.DeepSpeed8154, "dense", Fault.ONCE_A_STAGE),
    (published.NemoAutomodel3530, "dense", Fault.ONLY_LAST),
    (published.TransformerEngine3437, "tied", Fault.TIED_ONCE),
]


@pytest.mark.parametrize(("adapter", "model", "fault"), PUBLISHED)
def test_a_published_fault_is_found(adapter: type[Small], model: str, fault: str) -> None:
    for each in (adapter, unstated(adapter)):
        verdict = verdict_on(each, model)
        assert not verdict.ok
        assert fault in verdict.findings[0].classes, verdict.text


class TimesStages(Small):
    stages = 3

    def loss(self, output: Any, target: Tensor) -> Any:
        return super().loss(output, target) * self.stages


class OnlyFirst(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        before = [p.grad for p in self.model.parameters()]
        before = [None if g is None else g.clone() for g in before]
        loss = super().microbatch(k, x, target)
        for parameter, gradient in zip(self.model.parameters(), before, strict=True):
            parameter.grad = gradient if k else parameter.grad
        return loss


class LostInTheLastMicrobatch(Small):
    """The first stage's weight gradients of the last microbatch are never computed."""

    lost: Any = None

    def backward(self, stage: int, k: int, out: tuple[Tensor, ...], gradient: Any) -> None:
        own = list(self.parts[stage].parameters())
        before = [None if p.grad is None else p.grad.clone() for p in own]
        super().backward(stage, k, out, gradient)
        if (stage, k) == (0, self.microbatches - 1):
            self.lost = [p.grad - g for p, g in zip(own, before, strict=True)]
            for parameter, kept in zip(own, before, strict=True):
                parameter.grad = kept


class LateInTheLastMicrobatch(LostInTheLastMicrobatch):
    """They come an update later."""

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        self.late, self.lost = self.lost, None
        return super().step(batch)

    def update(self) -> None:
        for parameter, late in zip(self.parts[0].parameters(), self.late or (), strict=False):
            parameter.grad += late
        super().update()


class LateAltogether(Small):
    before: list[Tensor] | None = None

    def change(self) -> None:
        own = list(self.parts[0].parameters())
        now = [p.grad for p in own]
        for parameter, late in zip(own, self.before or map(torch.zeros_like, own), strict=True):
            parameter.grad = late
        self.before = [g for g in now if g is not None]


class Stale(Small):
    """Gradients are taken at the weights before the last update."""

    before: list[Tensor] | None = None

    def stale_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        own = self.stale_parameters()
        self.newest = [p.detach().clone() for p in own]
        for parameter, old in zip(own, self.before or self.newest, strict=True):
            parameter.data.copy_(old)
        loss = super().step(batch)
        self.before = self.newest
        return loss

    def change(self) -> None:
        for parameter, newest in zip(self.stale_parameters(), self.newest, strict=True):
            parameter.data.copy_(newest)


class LastStageStale(Stale):
    """One stage alone gets new weights an update late."""

    def stale_parameters(self) -> list[nn.Parameter]:
        return list(self.parts[1].parameters())


class StaleAsStated(Stale):
    stale = 1


class ClippedByStage(Small):
    def change(self) -> None:
        for part in self.parts:
            nn.utils.clip_grad_norm_(part.parameters(), 0.15)


class Clipped(Small):
    def change(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.15)


class ClippedAsStated(Clipped):
    clip_norm = 0.15


class TiedTwice(Small):
    def change(self) -> None:
        self.model[0].weight.grad *= 2


class WithMomentum(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model, partial(optimizer, momentum=0.9))


class FallingRate(Small):
    def update(self) -> None:
        super().update()
        self.optimizer.param_groups[0]["lr"] *= 0.9


class UpdateEachMicrobatch(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def update(self) -> None:
        pass


class Repeated(Small):
    def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        first, _, *others = super().cut(batch)
        return [first, first, *others]


class OtherTargets(Small):
    def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        parts = super().cut(batch)
        return [(x, parts[k - 1][1]) for k, (x, _) in enumerate(parts)]


class OtherStart(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        model[3].linear.reset_parameters()
        super().build(model, optimizer)


class BatchBefore(Small):
    before: tuple[Tensor, Tensor] | None = None

    def step(self, batch: tuple[Tensor, Tensor]) -> float | None:
        used, self.before = self.before or batch, batch
        return super().step(used)


class Thawed(Small):
    def build(self, model: Any, optimizer: Any) -> None:
        super().build(model.requires_grad_(True), optimizer)


class LossOfTheLast(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        loss = super().microbatch(k, x, target)
        return 4 * loss if k == 3 else 0.0


class StatisticsTwice(Small):
    def microbatch(self, k: int, x: Any, target: Tensor) -> float:
        with torch.no_grad():
            self.model(x)
        return super().microbatch(k, x, target)

    def parameters(self) -> Any:
        return self.model.state_dict()


class WholeBatchNormalised(Small):
    def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [batch]


FOUND: list[tuple[type[Small], str, str]] = [
    (TimesStages, "dense", Fault.TIMES_STAGES),
    (OnlyFirst, "dense", Fault.ONLY_FIRST),
    (LostInTheLastMicrobatch, "dense", Fault.LOST),
    (LateInTheLastMicrobatch, "dense", Fault.LATE),
    (LateAltogether, "dense", Fault.LATE),
    (MeanOfMeans, "tokens", Fault.PER_MICROBATCH),
    (MeanOfMeans, "odd", Fault.PER_MICROBATCH),
    (Stale, "dense", Fault.STALE.format("1 update")),
    (ClippedByStage, "dense", Fault.CLIPPED_BY_STAGE),
    (Clipped, "dense", Fault.CLIPPED),
    (TiedTwice, "tied", Fault.TIED_TWICE),
    (Uncleared, "dense", Fault.KEPT),
    (WithMomentum, "dense", Fault.MOMENTUM),
    (WithMomentum, "dropout", Fault.MOMENTUM),
    (published.NemoAutomodel3530, "dropout", Fault.ONLY_LAST),
    (FallingRate, "dense", Fault.RATE),
    (UpdateEachMicrobatch, "dense", Fault.EACH_MICROBATCH),
    (Repeated, "dense", Fault.MICROBATCHES),
    (OtherTargets, "dense", Fault.TARGETS),
    (OtherStart, "dense", Fault.START),
    (BatchBefore, "dense", Fault.EARLIER_BATCH),
    (Thawed, "frozen", Fault.FROZEN),
    (LossOfTheLast, "dense", Fault.LOSS),
    (StatisticsTwice, "batch-norm", Fault.BATCH_NORM),
    (WholeBatchNormalised, "batch-norm", Fault.BATCH_NORM),
]


@pytest.mark.parametrize(("adapter", "model", "fault"), sampled(FOUND, 8))
def test_a_fault_is_found_and_nothing_else_is_said(
    adapter: type[Small], model: str, fault: str
) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert verdict.findings[0].classes == (fault,), verdict.text


UNLISTED: list[tuple[type[Small], str, str]] = [
    (unlisted.TokensOfReplicas, "tokens", Fault.PER_MICROBATCH),
    (unlisted.IgnoredTokensCount, "tokens", Fault.TERMS),
    (unlisted.LabelsShiftedTwice, "tokens", Fault.TARGETS),
    (unlisted.TokensOfTheBatchBefore, "tokens", Fault.TERMS),
    (unlisted.TargetsInOtherRows, "dense", Fault.TARGETS),
    (unlisted.TargetsOfTheBatchBefore, "dense", Fault.TARGETS),
    (unlisted.InputsForLabels, "tokens", Fault.TARGETS),
    (unlisted.NormOfTheFirstStage, "dense", Fault.CLIPPED),
    (unlisted.LastRowsDropped, "odd", Fault.LOST),
    (unlisted.ReducedOverStages, "dense", Fault.MIXED),
    (unlisted.TiedCountTwiceInTheNorm, "tied", Fault.CLIPPED),
    (unlisted.DecayOfOneStage, "dense", Fault.DECAY),
    (unlisted.SecondTensorLost, "skips", Fault.CUT),
    (unlisted.OtherMasksInRecomputation, "dropout", Fault.DROPOUT),
    (unlisted.SumsInBfloat16, "dense", Fault.ROUNDED),
    (unlisted.WeightsInBfloat16, "dense", Fault.ROUNDED),
    (unlisted.Nesterov, "dense", Fault.OPTIMIZER),
    (unlisted.AdamWithDecay, "dense", Fault.OPTIMIZER),
    (unlisted.EverySecondBatch, "dense", Fault.SEVERAL_BATCHES),
    (unlisted.GradientOfANeighbour, "dense", Fault.HANDED),
    (unlisted.StagesInAnotherOrder, "dense", Fault.ORDER),
    (unlisted.ShardNotReduced, "dense", Fault.LOST),
    (unlisted.TiedScaledInTheMiddle, "tied", Fault.AVERAGED_TWICE),
    (unlisted.TargetsLate, "dense", Fault.TARGETS),
    (unlisted.ClippedBeforeTheSum, "dense", Fault.CLIPPED),
    (LastStageStale, "dense", Fault.STALE.format("1 update")),
    (unlisted.CopyOfTiedLeft, "tied", Fault.NEVER),
    (unlisted.SecondTensorScaled, "skips", Fault.AVERAGED_TWICE),
    (unlisted.EachRowsMean, "tokens", Fault.PER_MICROBATCH),
    (unlisted.WindowsOfSixteen, "odd", Fault.PER_MICROBATCH),
    (unlisted.AuxiliaryOfTheLast, "moe", Fault.AUXILIARY),
    (unlisted.InputOfTheBatchBefore, "dense", Fault.HANDED),
    (unlisted.GradientOfTheBatchBefore, "dense", Fault.HANDED),
    (unlisted.SkippedByOneStage, "dense", Fault.LOST),
    (unlisted.KeptByASkippedUpdate, "dense", Fault.LATE),
    (unlisted.HalfASequence, "tokens", Fault.LOST),
    (unlisted.MeanOfEachZigzag, "tokens", Fault.PER_MICROBATCH),
    (unlisted.HalfAColumnParallelLayer, "dense", Fault.CUT),
    (unlisted.ShardOverwritten, "dense", Fault.ONLY_LAST),
    (unlisted.LastLabelMasked, "tokens", Fault.LOST),
    (unlisted.StageEvaluates, "batch-norm", Fault.BATCH_NORM),
    (unlisted.BiasesTwiceInTheNorm, "dense", Fault.CLIPPED),
    (unlisted.WeightsByAnotherInput, "dense", Fault.HANDED),
    (unlisted.CopyOfTiedLate, "tied", Fault.STALE.format("1 update")),
    (unlisted.ClassesBehind, "dense", Fault.TARGETS),
    (unlisted.PaddingIsAClass, "tokens", Fault.LOST),
    (unlisted.SomeBatchesTwice, "dense", Fault.EARLIER_BATCH),
    (unlisted.BiasOfEachRank, "dense", Fault.SUMMED),
    (unlisted.GatheredLate, "dense", Fault.STALE.format("1 update")),
    (unlisted.LastNotDivided, "dense", Fault.MICROBATCHES),
    (unlisted.TokensOfAllBatches, "tokens", Fault.TERMS),
    (unlisted.NormOfTheBatchBefore, "dense", Fault.CLIPPED),
    (unlisted.OneBuffer, "dense", Fault.HANDED),
    (unlisted.InputOfTheFirst, "dense", Fault.TARGETS),
    (unlisted.LastBatchInSteps, "dense", Fault.EACH_MICROBATCH),
    (unlisted.SoftmaxOfShards, "dense", Fault.OTHER_LOSS),
    (unlisted.LargestTenth, "dense", Fault.LOST),
    (unlisted.FlatShifted, "dense", Fault.PLACES),
    (unlisted.LayerOnBothSides, "dense", Fault.ORDER),
    (unlisted.AveragedShards, "dense", Fault.FORWARD),
    (unlisted.InputAddedConstant, "dense", Fault.BACKWARD),
    (unlisted.RatesOfLayers, "dense", Fault.RATE),
    (unlisted.NoSuchClass, "dense", Fault.UNKNOWN),
]


@pytest.mark.parametrize(("adapter", "model", "fault"), sampled(UNLISTED, 8))
def test_a_fault_that_no_list_has_is_found_and_has_a_class(
    adapter: type[Small], model: str, fault: str
) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert fault in verdict.findings[0].classes, verdict.text


@pytest.mark.parametrize("adapter", [ClippedAsStated, StaleAsStated])
def test_what_an_adapter_states_is_no_fault(adapter: type[Small]) -> None:
    assert verdict_on(adapter).ok


def test_factors_that_cannot_be_told_apart_are_all_named() -> None:
    verdict = verdict_on(unstated(TimesStages))
    assert verdict.findings[0].classes == (Fault.SUMMED, Fault.TIMES_STAGES)
    assert "these cannot be told apart here" in verdict.text


@pytest.mark.parametrize("model", ["dense", "dropout"])
def test_a_stage_that_is_nowhere_is_missing(model: str) -> None:
    class Nowhere(Small):
        def parameters(self) -> Any:
            return dict(self.parts[0].named_parameters())

    assert verdict_on(Nowhere, model).classes == (Fault.MISSING,)  # the others are right


def test_weights_that_all_become_zero_are_judged() -> None:
    class Zeroed(Small):
        def update(self) -> None:
            for parameter in self.model.parameters():
                parameter.data.zero_()

    assert not verdict_on(Zeroed).ok


def test_ranks_whose_copies_differ_are_a_fault() -> None:
    class Half(Small):
        """A replica that has not added up its gradients with the other one."""

        half = 0

        def cut(self, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
            parts = super().cut(batch)
            return parts[: len(parts) // 2] if self.half == 0 else parts[len(parts) // 2 :]

    class OtherHalf(Half):
        half = 1

    ranks = [train(own, "dense") for own in (Half, OtherHalf)]
    classes = judged("dense", ranks).classes
    assert Fault.RANKS in classes
    assert Fault.LOST in classes  # two of four microbatches in each

    # What one of several ranks does is judged at its own weights.
    ranks = [train(own, "dense") for own in (Small, unlisted.SkippedByOneStage)]
    assert judged("dense", ranks).classes == (Fault.RANKS, Fault.LOST)
