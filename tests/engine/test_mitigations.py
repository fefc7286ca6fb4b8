"""What is done about stale weights: the engine's weights are the equations', to the bit."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from pipekit import Pipeline, Schedule, oracle, schedules, staleness
from pipekit import mitigation_equations as equations
from pipekit.staleness import Mitigation
from tests.engine.examples import MODELS, OPTIMIZERS, Batches, cores_of_each, cut, data, different

PREDICTABLE: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "spectrain's": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.9),
    "nesterov": OPTIMIZERS["nesterov"],
    "adam": OPTIMIZERS["adam"],
    "adamw": OPTIMIZERS["adamw"],
}
ANY = OPTIMIZERS | PREDICTABLE


class Case(NamedTuple):
    """A mitigation on a schedule: its equations, and ``(stages, microbatches, batches)``."""

    mitigation: Mitigation | None
    equations: equations.Equations | None
    oracle: str
    schedule: Callable[[int, int, int], Schedule]
    optimizers: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = ANY
    divides: bool = False
    flush_after: Sequence[int] = ()


def stashed(n: int, _: int, batches: int) -> Schedule:
    return schedules.pipedream(n, batches)


def newest(n: int, _: int, batches: int) -> Schedule:
    return schedules.pipedream(n, batches, stashing=False)


no_stashing = partial(Case, oracle="pipedream_no_stashing", schedule=newest)
two_bw = partial(Case, oracle="2bw", schedule=schedules.two_bw, divides=True)
paci = partial(Case, oracle="paci", schedule=schedules.paci, divides=True)
FLUSHES = (0, 1, 3)
CASES: dict[str, Case] = {
    "spectrain": no_stashing(staleness.SpecTrain(), equations.SpecTrain(), optimizers=PREDICTABLE),
    "pipeoptim": no_stashing(staleness.PipeOptim(), equations.PipeOptim(), optimizers=PREDICTABLE),
    "pipemare": no_stashing(staleness.PipeMare(3), equations.PipeMare(3)),
    "pipemare's rates": no_stashing(
        staleness.PipeMare(2, corrects=False), equations.PipeMare(2, corrects=False)
    ),
    "pipemare's correction": no_stashing(staleness.PipeMare(0, 0.5), equations.PipeMare(0, 0.5)),
    "gap-aware": Case(staleness.GapAware(), equations.GapAware(), "pipedream", stashed),
    "gap-aware 2bw": two_bw(staleness.GapAware(0.9), equations.GapAware(0.9)),
    "error feedback": two_bw(staleness.ErrorFeedback(), equations.Feedback()),
    "error feedback, pipedream": Case(
        staleness.ErrorFeedback(0.5), equations.Feedback(0.5), "pipedream", stashed
    ),
    "ahead": two_bw(staleness.Ahead(1), equations.Ahead(1), optimizers=PREDICTABLE),
    "paci": paci(None, None),
    "paci, spectrain": paci(staleness.SpecTrain(), equations.SpecTrain(), optimizers=PREDICTABLE),
    "paci, pipemare": paci(staleness.PipeMare(3), equations.PipeMare(3)),
    "2bw, delay warmed up": two_bw(
        None,
        None,
        schedule=partial(schedules.two_bw, flush_after=FLUSHES),
        flush_after=FLUSHES,
    ),
}


def step_lr(optimizer: Optimizer) -> LRScheduler:
    return StepLR(optimizer, step_size=1, gamma=0.7)


def both_ways(
    case: Case,
    model: nn.Sequential,
    batches: Batches,
    balance: list[int],
    m: int = 1,
    *,
    optimizer: str | None = None,
    lr_scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    clip_norm: float | None = None,
    **options: Any,
) -> tuple[Pipeline, oracle.OracleRun]:
    """Build a pipeline, and train by the equations."""
    name = optimizer or min(case.optimizers)
    how: dict[str, Any] = {
        "balance": balance,
        "optimizer": case.optimizers[name],
        "loss": nn.MSELoss(),
        "lr_scheduler": lr_scheduler,
        "clip_norm": clip_norm,
        "seed": options.pop("seed", 0),
    }
    stages = len(balance)
    schedule = lambda n: case.schedule(stages, m, n)  # noqa: E731
    pipe = Pipeline(model, schedule, mitigation=case.mitigation, **how, **options)
    truth = oracle.train(
        model,
        batches,
        method=case.oracle,
        microbatches=m if case.divides else 1,
        flush_after=case.flush_after,
        mitigation=case.equations,
        threads=cores_of_each(stages),
        **how,
    )
    return pipe, truth


def assert_equal(pipe: Pipeline, truth: oracle.OracleRun, batches: Batches) -> None:
    assert pipe.train(batches, trace=False).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


def drawn(data_: st.DataObject, name: str) -> dict[str, Any]:
    """A random training with a case."""
    draw, case = data_.draw, CASES[name]
    model = MODELS[draw(st.sampled_from(sorted(MODELS)), "model")]()
    balance = cut(8, draw(st.sets(st.integers(1, 7), max_size=5), "edges"))
    least = len(balance) if case.oracle == "2bw" else 1
    m = draw(st.integers(least, least + 3), "microbatches") if case.divides else 1
    rows = draw(st.lists(st.integers(2 * m, 2 * m + 3), min_size=1, max_size=7), "rows")
    can_clip = case.oracle in ("pipedream", "2bw")
    can_recompute = case.oracle in ("pipedream", "2bw")
    modes = ["never", "except_last", "always"] if can_recompute else ["never"]
    return {
        "model": model,
        "batches": data(rows=rows),
        "balance": balance,
        "m": m,
        "optimizer": draw(st.sampled_from(sorted(case.optimizers)), "optimizer"),
        "lr_scheduler": draw(st.sampled_from([None, step_lr]), "lr_scheduler"),
        "clip_norm": draw(st.sampled_from([None, 0.1]), "clip_norm") if can_clip else None,
        "recompute": draw(st.sampled_from(modes), "recompute"),
        "seed": draw(st.integers(0, 3), "seed"),
    }


@settings(max_examples=6)
@given(data_=st.data())
@pytest.mark.parametrize("name", CASES)
def test_weights_and_losses_are_the_equations(name: str, data_: st.DataObject) -> None:
    case = drawn(data_, name)
    pipe, truth = both_ways(CASES[name], **case)
    assert_equal(pipe, truth, case["batches"])


@pytest.mark.parametrize(
    "name", ["spectrain", "pipemare", "gap-aware", "error feedback", "ahead", "paci"]
)
def test_processes_give_the_same_bits(name: str) -> None:
    m = 3 if CASES[name].divides else 1
    batches = data(5, rows=2 * m)
    pipe, truth = both_ways(
        CASES[name], MODELS["mixed"](), batches, [2, 3, 3], m, transport="distributed"
    )
    assert_equal(pipe, truth, batches)
    pipe.close()


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.mitigation])
def test_it_is_other_than_without(name: str) -> None:
    """Else all of the above would hold of nothing."""
    case = CASES[name]
    m = 3 if case.divides else 1
    batches = data(6, rows=2 * m)
    _, truth = both_ways(case, MODELS["mixed"](), batches, [2, 3, 3], m)
    _, plain = both_ways(case._replace(equations=None), MODELS["mixed"](), batches, [2, 3, 3], m)
    assert different(truth.weights[-1], plain.weights[-1])


# --- Runs that are taken up again ----------------------------------------------------------------


def build(name: str, m: int = 3, **options: Any) -> Pipeline:
    case = CASES[name]
    optimizer = case.optimizers["adam"]
    count = m if case.divides else 1
    return Pipeline(
        MODELS["mixed"](),
        lambda n: case.schedule(3, count, n),
        balance=[2, 3, 3],
        optimizer=optimizer,
        loss=nn.MSELoss(),
        lr_scheduler=step_lr,
        mitigation=case.mitigation,
        **options,
    )


def rows(name: str) -> int:
    return 6 if CASES[name].divides else 2


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_resumed_in_the_midst_it_goes_on_to_the_same_bits(
    name: str, batch: int, tmp_path: Path
) -> None:
    """The pipeline is full there: older versions, and what was predicted of them, come back."""
    batches = data(6, rows=rows(name))
    first = build(name)
    whole = first.train(batches, checkpoints=tmp_path, every=2, keep=9)
    for folder in tmp_path.glob("batch-*"):
        if int(folder.name.split("-")[1]) > batch:
            shutil.rmtree(folder)
    second = build(name)
    assert second.resume(tmp_path) == 0
    rest = second.train(batches)
    assert rest.losses == whole.losses
    assert different(second.state_dict(), first.state_dict()) == []


STASHED = [n for n, case in CASES.items() if case.oracle in ("pipedream", "2bw")]


@pytest.mark.parametrize("name", [n for n in STASHED if n != "2bw, delay warmed up"])
def test_two_calls_without_a_restart_are_one(name: str) -> None:
    batches = data(6, rows=rows(name))
    first, second = build(name), build(name)
    whole = first.train(batches)
    parts = [second.train(batches[a:b], restart=False) for a, b in ((0, 2), (2, 3), (3, 6))]
    assert [loss for part in parts for loss in part.losses] == whole.losses
    assert different(first.state_dict(), second.state_dict()) == []
    second.train(batches)  # with one, in which only the newest version is left


def test_without_stashing_no_call_goes_on_where_another_has_ended() -> None:
    with pytest.raises(ValueError, match="without weight stashing"):
        build("pipemare").train(data(2), restart=False)
