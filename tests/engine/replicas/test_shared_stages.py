"""Tables with both directions, and others whose workers share stages: all that check accepts."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pipekit.schedules import Schedule, check, parse
from tests.engine.examples import Trained, by_equations, data, mlp, pipeline, trained, unlike
from tests.engine.gloo import over_gloo
from tests.engine.replicas.shared_tables import at_random, down_then_up, ring, two_directions

TABLES = {
    "two directions": lambda: two_directions(2, 4, 3),
    "two directions, 4 stages": lambda: two_directions(4, 4, 2),
    "down, then up": lambda: down_then_up(2, 4, 3),
    "ring": lambda: ring(3, 4, 2),
}


def model_for(schedule: Schedule) -> nn.Sequential:
    return mlp(*[6] * schedule.stages, 3)


def outcome(schedule: Schedule, **options: Any) -> Trained:
    """Train twice, as the second run begins where the first has left things, and evaluate."""
    batches = data(len(schedule.batches), rows=10)
    pipe = pipeline(model_for(schedule), schedule, [1] * schedule.stages, **options)
    losses, state = trained(pipe, batches, batches)
    return Trained([*losses, pipe.evaluate(batches)], state)


def assert_trains_as_one(schedule: Schedule, **options: Any) -> None:
    check(schedule)
    losses, weights = outcome(schedule, **options)
    batches, balance = data(len(schedule.batches), rows=10) * 2, [1] * schedule.stages
    options["m"] = len(schedule.batches[0])
    truth = by_equations(model_for(schedule), batches, "gpipe", balance, **options)
    assert losses[:-1] == pytest.approx(truth.losses, rel=1e-4)
    for name, expected in truth.weights[-1].items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TABLES)
def test_it_trains_as_one_model(name: str) -> None:
    assert_trains_as_one(TABLES[name]())


@pytest.mark.parametrize("seed", range(8))
def test_any_table_that_check_accepts(seed: int) -> None:
    assert_trains_as_one(at_random(seed))


@pytest.mark.parametrize("seed", range(12, 14))
def test_any_table_with_one_norm(seed: int) -> None:
    """Updates wait for one another, so that the order of the sums may be another one."""
    assert_trains_as_one(at_random(seed, early=0.0), clip_norm=0.1)


@pytest.mark.parametrize("name", ["two directions", "ring"])
def test_processes_train_as_threads_do(name: str) -> None:
    """What a worker of the ring sends a stage has another form than what it gets for that stage."""
    schedule = TABLES[name]()
    expected = outcome(schedule)
    run = partial(outcome, schedule, transport="distributed")
    under_torchrun = over_gloo(run, len(schedule.workers)) if name == "ring" else []
    for found in (run(), *under_torchrun):
        assert unlike(found, expected) == []


def test_who_adds_nothing_to_a_sum_keeps_nobody_waiting() -> None:
    """Worker 1 comes to its first update only after worker 0 has got past its own."""
    schedule = parse("""
        # uneven; batches of 1
        worker 0         | F0 B0^ F2 B2^2
        worker 1 stage 0 | F1 B1^0^2
        worker 2 stage 1 | F0 B0^ F2 B2 F1 B1^2
        """)
    check(schedule)
    pipe = pipeline(mlp(6, 6, 3), schedule, [1, 1])
    assert len(pipe.train(data(3)).losses) == 3
