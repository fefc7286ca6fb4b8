"""Schedules without end train as their finite parts do, to the bit, however the batches come."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from pipekit import Schedule, schedules
from pipekit.schedules.methods.by_name import METHODS
from tests.engine.examples import OPTIMIZERS, Trained, data, dropping, pipeline, unlike
from tests.engine.parametrized import first_over_processes

BATCHES = 5
EACH_KIND = "flush", "2bw", "pipedream", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe-v"
SCHEDULES: dict[str, Callable[[], Schedule]] = {
    **{name: partial(METHODS[name], 4, 8) for name in EACH_KIND},
    "asp": lambda: schedules.asp(3),
    "asp, delay": lambda: schedules.asp(2, delay=3),
    "bsp": lambda: schedules.pipedream([3]),
    "pipedream 2-1": lambda: schedules.pipedream([2, 1]),
    "pipedream 2-3, vertical sync": lambda: schedules.pipedream([2, 3], vertical_sync=True),
    "pipedream, more in flight": lambda: schedules.pipedream([2, 1], in_flight=[4, 3]),
    "2bw with flushes": lambda: schedules.two_bw(2, 4, flush_after=(0, 2)),
    "2 x 2bw": lambda: schedules.replicate(schedules.two_bw(2, 3), 2),
    "2 x paci": lambda: schedules.replicate(schedules.paci(2, 3), 2),
    "2 x chimera": lambda: schedules.replicate(schedules.chimera(2, 4), 2),
    "a batch repeated": lambda: schedules.zb_h1(2, 4).take(1).repeat(),
    "three batches repeated": lambda: schedules.two_bw(2, 4).take(3).repeat(),
}


def outcome(schedule: Schedule, batches: Any, transport: str, **options: Any) -> Trained:
    how: dict[str, Any] = {"optimizer": OPTIMIZERS["adam"], "transport": transport}
    pipe = pipeline(dropping(schedule.stages), schedule, [1] * schedule.stages, **how)
    run = pipe.train(batches, **options)
    assert run.schedule.workers == schedule.take(BATCHES).workers
    return Trained(run.losses, pipe.state_dict())


@cache
def of_its_part(name: str) -> Trained:
    """Return what training by the finite schedule of as many batches gives."""
    return outcome(SCHEDULES[name]().take(BATCHES), data(BATCHES, rows=16), "threads")


@first_over_processes("name", ["2bw", *(name for name in SCHEDULES if name != "2bw")])
def test_it_is_training_by_its_first_batches(name: str, transport: str) -> None:
    found = outcome(SCHEDULES[name](), data(BATCHES, rows=16), transport)
    assert unlike(found, of_its_part(name)) == []


@pytest.mark.parametrize(
    ("name", "batches", "steps"),
    [
        ("2bw", iter, None),
        ("pipedream 2-1", iter, None),
        ("2bw with flushes", lambda batches: batches + data(4), BATCHES),
    ],
)
def test_batches_need_no_length_and_steps_end_longer_ones(
    name: str, batches: Callable[[Any], Any], steps: int | None
) -> None:
    given = batches(data(BATCHES, rows=16))
    found = outcome(SCHEDULES[name](), given, "threads", steps=steps)
    assert unlike(found, of_its_part(name)) == []
