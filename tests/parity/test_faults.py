"""Every fault is found and its class named: published ones, and all that the judge knows."""

from typing import Any

import pytest
from torch import Tensor

from pipekit.parity.adapter import STEPS, train
from pipekit.parity.judge import judged
from pipekit.parity.observed import Observed
from pipekit.parity.plain_loop import PlainLoop
from pipekit.parity.suite import SUITE
from pipekit.parity.verdict import Fault
from tests.parity import listed, published, unlisted
from tests.parity.small import FAULTS, Small, unstated, verdict_on
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


@pytest.mark.parametrize(
    ("adapter", "model", "fault"), sampled([*FAULTS["listed"], *FAULTS["small"]], 8)
)
def test_a_fault_is_found_and_nothing_else_is_said(
    adapter: type[Small], model: str, fault: str
) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert verdict.findings[0].classes == (fault,), verdict.text


@pytest.mark.parametrize(("adapter", "model", "fault"), sampled(FAULTS["unlisted"], 8))
def test_a_fault_that_no_list_has_is_found_and_has_a_class(
    adapter: type[Small], model: str, fault: str
) -> None:
    verdict = verdict_on(adapter, model)
    assert not verdict.ok
    assert fault in verdict.findings[0].classes, verdict.text


class ClippedAsStated(listed.Clipped):
    clip_norm = 0.15


class StaleAsStated(listed.Stale):
    stale = 1


@pytest.mark.parametrize("adapter", [ClippedAsStated, StaleAsStated])
def test_what_an_adapter_states_is_no_fault(adapter: type[Small]) -> None:
    assert verdict_on(adapter).ok


def test_factors_that_cannot_be_told_apart_are_all_named() -> None:
    verdict = verdict_on(unstated(listed.TimesStages))
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

    loop = PlainLoop(SUITE["dense"], SUITE["dense"].batches(STEPS, Zeroed.microbatches))
    assert len(Observed(loop, [train(Zeroed, "dense")]).wrong) == 32


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
