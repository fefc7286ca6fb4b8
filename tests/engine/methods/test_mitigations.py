"""What is done about stale weights: the engine's weights are the equations', to the bit."""

import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from pipekit import (
    Checkpoints,
    Pipeline,
    Profile,
    Schedule,
    Watch,
    measure_memory,
    oracle,
    schedules,
    simulate,
    staleness,
)
from pipekit.oracle import mitigation_equations as equations
from pipekit.profiling import LayerProfile
from pipekit.staleness import Mitigation, Pass, Weight
from tests.engine.examples import (
    MODELS,
    OPTIMIZERS,
    Batches,
    cut,
    data,
    pipeline,
    trained,
    unlike,
    values,
)
from tests.engine.parametrized import first_over_processes
from tests.engine.replicas.test_replicas_against_oracle import compare
from tests.engine.updates.test_ties import tied

PREDICTABLE: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "spectrain's": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.9),
    "nesterov": OPTIMIZERS["nesterov"],
    "adam": OPTIMIZERS["adam"],
    "adamw": OPTIMIZERS["adamw"],
}
ANY = OPTIMIZERS | PREDICTABLE
PLAIN: dict[str, Any] = {"optimizer": ANY["adam"], "loss": nn.MSELoss(), "balance": [4, 4]}


class Case(NamedTuple):
    """A mitigation on a schedule: its equations, and ``(stages, microbatches, batches)``."""

    mitigation: Mitigation | None
    equations: equations.Equations | None
    oracle: str
    schedule: Callable[[int, int], Schedule]
    optimizers: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = ANY
    divides: bool = False
    flush_after: Sequence[int] = ()


def stashed(n: int, _: int) -> Schedule:
    return schedules.pipedream(n)


def newest(n: int, _: int) -> Schedule:
    return schedules.pipedream(n, stashing=False)


no_stashing = partial(Case, oracle="pipedream_no_stashing", schedule=newest)
two_bw = partial(Case, oracle="2bw", schedule=schedules.two_bw, divides=True)
paci = partial(Case, oracle="paci", schedule=schedules.paci, divides=True)
FIRST, FLUSHES = (0, 1, 2), (0, 1, 3)
CASES: dict[str, Case] = {
    "spectrain": no_stashing(staleness.SpecTrain(), equations.SpecTrain(), optimizers=PREDICTABLE),
    "pipeoptim": no_stashing(staleness.PipeOptim(), equations.PipeOptim(), optimizers=PREDICTABLE),
    "pipeoptim as released": no_stashing(
        staleness.PipeOptim(extra=1), equations.PipeOptim(extra=1), optimizers=PREDICTABLE
    ),
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
        None, None, schedule=partial(schedules.two_bw, flush_after=FLUSHES), flush_after=FLUSHES
    ),
    "2bw, synchronous first": two_bw(
        None, None, schedule=partial(schedules.two_bw, flush_after=FIRST), flush_after=FIRST
    ),
    # What they compute is judged in tests/staleness/test_optimizers.py.
    "nesterov": Case(
        None, None, "pipedream", stashed, optimizers={"adam": staleness.nesterov(lr=0.01)}
    ),
    "basis rotation": Case(
        None,
        None,
        "pipedream",
        stashed,
        optimizers={"adam": lambda p: staleness.BasisRotation(p, lr=0.01, every=2)},
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
    schedule = case.schedule(len(balance), m)
    pipe = Pipeline(model, schedule, **values(mitigation=case.mitigation, **how, **options))
    truth = oracle.train(
        model,
        batches,
        method=case.oracle,
        microbatches=m if case.divides else 1,
        flush_after=case.flush_after,
        mitigation=case.equations,
        **how,
    )
    return pipe, truth


def drawn(data_: st.DataObject, name: str) -> dict[str, Any]:
    """A random training with a case."""
    draw, case = data_.draw, CASES[name]
    model = MODELS[draw(st.sampled_from(sorted(MODELS)), "model")]()
    balance = cut(8, draw(st.sets(st.integers(1, 7), max_size=5), "edges"))
    least = len(balance) if case.oracle == "2bw" else 1
    m = draw(st.integers(least, least + 3), "microbatches") if case.divides else 1
    rows = draw(st.lists(st.integers(2 * m, 2 * m + 3), min_size=1, max_size=7), "rows")
    stashes = case.oracle in ("pipedream", "2bw")
    modes = ["never", "except_last", "always"] if stashes else ["never"]
    return {
        "model": model,
        "batches": data(rows=rows),
        "balance": balance,
        "m": m,
        "optimizer": draw(st.sampled_from(sorted(case.optimizers)), "optimizer"),
        "lr_scheduler": draw(st.sampled_from([None, step_lr]), "lr_scheduler"),
        "clip_norm": draw(st.sampled_from([None, 0.1]), "clip_norm") if stashes else None,
        "recompute": draw(st.sampled_from(modes), "recompute"),
        "seed": draw(st.integers(0, 3), "seed"),
    }


@settings(max_examples=2)
@given(data_=st.data())
@pytest.mark.parametrize("name", CASES)
def test_weights_and_losses_are_the_equations(name: str, data_: st.DataObject) -> None:
    case = drawn(data_, name)
    pipe, truth = both_ways(CASES[name], **case)
    assert unlike(trained(pipe, case["batches"]), truth) == []


@pytest.mark.parametrize("name", ["ahead", "gap-aware 2bw"])
def test_weights_that_stages_share(name: str) -> None:
    model, batches = tied(("0.weight", "4.weight")), data(5, rows=6)
    pipe, truth = both_ways(CASES[name], model, batches, [3, len(model) - 3], 3)
    assert unlike(trained(pipe, batches), truth) == []


# --- Runs that are taken up again ----------------------------------------------------------------


def build(name: str) -> Pipeline:
    case = CASES[name]
    return pipeline(
        MODELS["mixed"](),
        case.schedule(3, 3 if case.divides else 1),
        [2, 3, 3],
        optimizer=case.optimizers["adam"],
        lr_scheduler=step_lr,
        mitigation=case.mitigation,
    )


def rows(name: str) -> int:
    return 6 if CASES[name].divides else 2


VARIANTS = {
    "pipeoptim as released",
    "pipemare's rates",
    "gap-aware 2bw",
    "paci",
    "paci, spectrain",
    "2bw, delay warmed up",
    "2bw, synchronous first",
    "nesterov",
}
"""Which keep nothing else than another case does."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - VARIANTS))
def test_resumed_in_the_midst_it_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """The pipeline is full there: older versions, and what was predicted of them, come back."""
    batches = data(6, rows=rows(name))
    whole = trained(build(name), batches, checkpoints=Checkpoints(tmp_path, every=2, keep=9))
    for folder in tmp_path.glob("batch-*"):
        if int(folder.name.split("-")[1]) > 2:
            shutil.rmtree(folder)
    second = build(name)
    assert second.resume(tmp_path) == 0
    assert unlike(trained(second, batches), whole) == []


# --- Stages on several workers -------------------------------------------------------------------


class Replicated(NamedTuple):
    """A case on several workers a stage: ``(replicas, microbatches)``."""

    case: str
    schedule: Callable[[list[int], int], Schedule]
    equal: bool = False  # whether all stages are on equally many workers


def newest_on(replicas: list[int], _: int) -> Schedule:
    return schedules.pipedream(replicas, stashing=False)


def stashed_on(replicas: list[int], _: int) -> Schedule:
    return schedules.pipedream(replicas)


def two_bw_on(replicas: list[int], m: int, flush_after: Sequence[int] = ()) -> Schedule:
    return schedules.replicate(schedules.two_bw(len(replicas), m, flush_after), replicas[0])


REPLICATED = [
    Replicated("spectrain", newest_on),
    Replicated("pipemare", newest_on),
    Replicated("gap-aware", stashed_on),
    Replicated("error feedback, pipedream", stashed_on),
    Replicated("error feedback", two_bw_on, equal=True),
    Replicated("ahead", two_bw_on, equal=True),
    Replicated("2bw, delay warmed up", partial(two_bw_on, flush_after=FLUSHES), equal=True),
    Replicated("basis rotation", stashed_on),
]


@settings(max_examples=2)
@given(data_=st.data())
@pytest.mark.parametrize("kind", REPLICATED, ids=lambda kind: kind.case)
def test_stages_on_several_workers(kind: Replicated, data_: st.DataObject) -> None:
    draw, case = data_.draw, CASES[kind.case]
    stages = draw(st.integers(1, 3), "stages")
    width = draw(st.integers(1, 3), "width")
    replicas = [width] * stages
    if not kind.equal:
        replicas = draw(st.lists(st.integers(1, 3), min_size=stages, max_size=stages), "replicas")
    m = draw(st.integers(stages, stages + 1), "m") if case.divides else 1
    # Who corrects a gradient has to know the weights at which it was taken.
    whole = math.lcm(*replicas) if kind.case in ("gap-aware", "pipemare") else 1
    count = whole * draw(st.integers(1, 6), "rounds") if whole > 1 else draw(st.integers(1, 7))
    parts = m * width if kind.equal else 1
    compare(
        MODELS["frozen"](),
        data(count, rows=2 * parts),
        kind.schedule(replicas, m),
        {"mitigation": case.mitigation},
        balance=[8 - 2 * (stages - 1), *[2] * (stages - 1)],
        replicas=replicas,
        optimizer=case.optimizers[draw(st.sampled_from(sorted(case.optimizers)), "optimizer")],
        method=case.oracle,
        microbatches=parts,
        flush_after=case.flush_after,
        mitigation=case.equations,
    )


# --- A rule of one's own -------------------------------------------------------------------------


class Halfway(Mitigation):
    """Reads what lies between the version of the table and the one before it in time."""

    def weights(self, at: Pass, weight: Weight) -> Tensor:
        return weight.read - 0.5 * weight.memory.get("step", torch.zeros_like(weight.read))

    def updated(self, at: Any, weight: Weight, before: Tensor) -> Tensor:
        weight.memory["step"] = weight.newest - before
        return weight.newest


class HalfwayByEquation(equations.Equations):
    def forward(self, past: equations.Past, name: str, v: int) -> Tensor:
        if not v:
            return past.weights[0][name]
        return past.weights[v][name] - 0.5 * (past.weights[v][name] - past.weights[v - 1][name])

    def backward(self, past: equations.Past, name: str, t: int) -> Tensor:
        return self.forward(past, name, t)


@first_over_processes("like", ["spectrain", "ahead", "gap-aware"])
def test_a_rule_of_ones_own(like: str, transport: str) -> None:
    case = CASES[like]._replace(mitigation=Halfway(), equations=HalfwayByEquation())
    m = 3 if case.divides else 1
    batches = data(6, rows=2 * m)
    pipe, truth = both_ways(
        case, MODELS["mixed"](), batches, [2, 3, 3], m, optimizer="adam", transport=transport
    )
    assert unlike(trained(pipe, batches), truth) == []


def test_measured_memory_has_its_slots_and_tensors() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    run = pipeline(
        model,
        schedules.pipedream(2, stashing=False),
        [1, 1],
        optimizer=ANY["adam"],
        mitigation="pipemare:anneal=2",
    ).train([(torch.randn(2, 3), torch.randn(2, 3)) for _ in range(3)], watch=Watch(memory=True))
    frame = measure_memory(run).frame
    held = frame.groupby("worker")[["weights", "optimizer"]].max()
    own = 12 * 4  # a stage's parameters
    assert held["weights"].tolist() == [2 * own, 2 * own]
    assert held["optimizer"][0] - held["optimizer"][1] == own  # the last stage corrects nothing


def test_simulated_memory_has_the_slots_of_real_runs() -> None:
    layers = tuple(LayerProfile(str(n), 1.0, 2.0, parameter_bytes=10.0) for n in range(3))
    for schedule, mitigation, slots in (
        (schedules.pipedream(3, stashing=False).take(6), None, (1, 1, 1)),
        (schedules.pipedream(3, stashing=False).take(6), "spectrain", (2, 2, 2)),
        (schedules.two_bw(3, 3).take(4), "ahead", (4, 4, 4)),
        (schedules.pipedream(3).take(6), "gap-aware", (3, 2, 1)),
    ):
        memory = simulate(schedule, Profile(layers), mitigation=mitigation).memory
        assert memory is not None
        held = memory.frame.groupby("worker")["weights"].max()
        assert tuple(held / 10) == slots
