"""No false alarm: right trainers of every kind, on every model of the suite."""

from typing import Any

import pytest
import torch

from pipekit.names import METHODS
from pipekit.parity.plain_loop import LEARNING_RATE, PlainLoop
from pipekit.parity.suite import SUITE, loss
from pipekit.parity.verdict import TOLERANCE, Fault
from tests.parity.adapters.hugging_face import HuggingFace
from tests.parity.adapters.own import STALE, Module, engine_adapter
from tests.parity.published import DeepSpeed7773
from tests.parity.small import Small, unstated, verdict_on
from tests.sampled import sampled


@pytest.mark.parametrize("model", SUITE)
def test_the_small_pipeline_is_right_on_every_model(model: str) -> None:
    verdict = verdict_on(Small, model)
    assert verdict.ok, verdict.text
    assert not verdict.classes
    assert all((ratio.ulps or 0) < TOLERANCE / 8 for ratio in verdict.parameters.values())


@pytest.mark.long
@pytest.mark.parametrize("model", ["dense", "batch-norm", "moe"])
def test_the_number_of_microbatches_is_found(model: str) -> None:
    class Eight(Small):
        microbatches = 8

    verdict = verdict_on(unstated(Eight), model)
    assert verdict.ok, verdict.text


@pytest.mark.parametrize("model", ["dense", "tied", "frozen"])
def test_the_judges_loop_is_torchs(model: str) -> None:
    """The judge's own oracle: autograd and SGD on the model as it is, in float64."""
    case = SUITE[model]
    batches = case.batches(3, None)
    plain = case.model().double()
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], LEARNING_RATE)
    for inputs, target in batches:
        optimizer.zero_grad()
        x = inputs.double() if inputs.is_floating_point() else inputs
        loss(plain(x), target).backward()
        optimizer.step()
    ours = PlainLoop(case, batches).train(3, 4, None).weights[-1]
    for name, parameter in plain.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(ours[name], parameter.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", sampled([*METHODS], 5))
def test_every_method_of_ours_is_right_or_stale_as_it_is(method: str) -> None:
    verdict = verdict_on(engine_adapter(method), "dense")
    assert verdict.ok, verdict.text
    assert bool(verdict.classes) == (method in STALE)
    assert all(fault.startswith("stale by") for fault in verdict.classes)


@pytest.mark.long
@pytest.mark.parametrize("model", ["tied", "skips", "batch-norm", "tokens", "odd"])
def test_the_pipelined_module_is_right(model: str) -> None:
    verdict = verdict_on(Module, model)
    assert verdict.ok, verdict.text


@pytest.mark.long
def test_a_hugging_face_trainer_that_accumulates_is_right() -> None:
    pytest.importorskip("transformers")
    verdict = verdict_on(HuggingFace, "dense")
    assert verdict.ok, verdict.text


class Masks(Small):
    """Draws other masks than the plain loop."""

    def step(self, batch: Any) -> float | None:
        torch.manual_seed(int(batch[1].sum()))
        return super().step(batch)


class MasksSummed(Masks, DeepSpeed7773):
    pass


def test_with_other_masks_only_the_mean_is_compared() -> None:
    verdict = verdict_on(Masks, "dropout")
    assert verdict.ok
    assert verdict.classes == (Fault.DROPOUT,)
    assert "not judged: more than the mean of 24 draws" in verdict.text
    assert verdict_on(MasksSummed, "dropout").classes == (Fault.DROPOUT, Fault.SUMMED)


def test_with_the_loops_own_masks_a_factor_is_found_exactly() -> None:
    assert verdict_on(DeepSpeed7773, "dropout").classes == (Fault.SUMMED,)


class Autocast(Small):
    """Multiplies in bfloat16, as it states."""

    lower_precision = True

    def microbatch(self, k: int, x: Any, target: Any) -> float:
        with torch.autocast("cpu", torch.bfloat16):
            output = self.model(x)
        loss = self.loss(output.float(), target)
        loss.backward()
        return float(loss.detach())


class AutocastSummed(Autocast, DeepSpeed7773):
    pass


@pytest.mark.long
def test_a_lower_precision_that_is_stated_is_no_fault_and_hides_none() -> None:
    verdict = verdict_on(Autocast, "tied")
    assert verdict.ok, verdict.text
    assert verdict.classes == (Fault.ROUNDED,)
    assert verdict_on(AutocastSummed).classes == (Fault.SUMMED,)


def test_no_dropout_at_all_is_a_fault() -> None:
    class Off(Small):
        def build(self, model: Any, optimizer: Any) -> None:
            super().build(model.eval(), optimizer)

    verdict = verdict_on(Off, "dropout")
    assert not verdict.ok
    assert verdict.classes == (Fault.DROPOUT,)
