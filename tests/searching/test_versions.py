"""Without a flush: what is found keeps to its rule for versions, trains by its equation, and fits."""

from typing import Any

import pytest
from torch import nn

import pipekit as pk
from pipekit import Pipeline, Schedule, oracle
from pipekit.clusters import flat
from pipekit.plans import Plan
from pipekit.schedules import check, pipedream, two_bw
from tests.engine.examples import data, different, nesterov, values
from tests.engine.methods.test_methods import network
from tests.searching.test_search import unequal

CASES = [("2bw", 3, 3, 3, 3), ("2bw", 4, 2, 3, 3), ("pipedream", 3, 3, 1, 7)]
"""The rule, stages, workers, microbatches a batch, and batches."""


def found(
    versions: str, stages: int, workers: int, microbatches: int, batches: int, **options: Any
) -> Schedule:
    options = {"memory_cap": None, "seconds": 0.1, "cluster": flat(workers, 20.0)} | options
    return pk.search(
        unequal(stages, 1),
        Plan.by_hand([1] * stages),
        microbatches=microbatches,
        workers=workers,
        batches=batches,
        versions=versions,  # type: ignore[arg-type]
        **options,
    ).schedule


def depths(schedule: Schedule) -> list[int]:
    """How many minibatches behind its own each stage reads, as PipeDream counts them in flight."""
    tasks = [task for worker in schedule.workers for task in worker]
    passes = [task for task in tasks if task.op.letter != "U"]
    return [
        max(t.microbatch - t.version + 1 for t in passes if t.stage == stage)
        for stage in range(schedule.stages)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_trains_by_the_equation_of_its_rule(case: tuple[str, int, int, int, int]) -> None:
    versions, stages, _, microbatches, batches = case
    schedule = found(*case)
    check(schedule)
    model, batch = network(stages), data(batches, rows=2 * microbatches)
    how: dict[str, Any] = {"optimizer": nesterov, "loss": nn.MSELoss(), "seed": 0}
    pipe = Pipeline(model, schedule, balance=[1] * stages, transport="threads", **values(**how))
    run, weights = pipe.train(batch), pipe.state_dict()
    pipe.close()
    truth = oracle.train(
        model,
        batch,
        method=versions,
        balance=[1] * stages,
        microbatches=microbatches,
        in_flight=depths(schedule) if versions == "pipedream" else None,
        **how,
    )
    assert run.losses == truth.losses
    assert different({n: weights[n] for n in truth.weights[-1]}, truth.weights[-1]) == []


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
def test_it_is_never_longer_than_the_named_method(case: tuple[str, int, int, int, int]) -> None:
    _, stages, workers, microbatches, batches = case
    named = (
        two_bw(stages, microbatches).take(batches)
        if microbatches > 1
        else pipedream(3).take(batches)
    )
    profile, links = unequal(stages, 1), flat(workers, 20.0)
    best = pk.simulate(named, profile, None, links)
    assert best.memory is not None
    cap = float(max(best.memory.peak_bytes) + 1)
    trace = pk.simulate(found(*case, memory_cap=cap), profile, None, links)
    assert trace.memory is not None
    assert max(trace.memory.peak_bytes) <= cap
    assert trace.makespan_s <= best.makespan_s


def test_a_second_version_is_kept_where_there_is_memory_for_it() -> None:
    """With a flush, every batch ends in a bubble; without, the weights are there twice."""
    layers = pk.Profile.uniform(3, 1.0, 2.0, output_bytes=1, parameter_bytes=100).layers
    plan = Plan.by_hand([1] * 3)

    def versions(cap: float) -> set[int]:
        made = pk.search(
            pk.Profile(layers),
            plan,
            None,
            cap,
            microbatches=4,
            batches=4,
            versions=("1", "2bw"),
            seconds=0.1,
        )
        return set(check(made.schedule).peak_versions)

    assert versions(400.0) == {2}
    assert versions(250.0) == {1}


def test_what_is_no_rule_or_has_no_minibatches_is_refused() -> None:
    with pytest.raises(ValueError, match="versions are 1, 2bw, pipedream, not '3bw'"):
        found("3bw", 2, 2, 2, 2)
    with pytest.raises(ValueError, match="use microbatches=1 and as many batches"):
        found("pipedream", 2, 2, 2, 2)
