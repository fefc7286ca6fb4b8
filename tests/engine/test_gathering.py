"""Threads that take turns all the time are put on one core, and those that compute on all."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from pipekit.engine.gathering import (
    FEWEST_WAITS,
    FIRST_REST_S,
    LOOK_EVERY_S,
    SHORT_S,
    Gathering,
    Use,
)
from pipekit.engine.transports.run_threads import together

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads can be placed on Linux only, and there must be two cores to choose from",
)
MANY = 10 * FEWEST_WAITS


class Machine:
    """Time goes on, and the process computes and waits, as a test says."""

    def __init__(self) -> None:
        self.time, self.used = 100.0, Use(5.0, 1000)  # from what it did before

    def now(self) -> float:
        return self.time

    def use(self) -> Use:
        return self.used

    def go_on(self, waits: int, between_waits: float, seconds: float = LOOK_EVERY_S) -> None:
        self.time += seconds
        computed, before = self.used
        self.used = Use(computed + waits * between_waits, before + waits)


@contextmanager
def idle_threads(count: int = 2) -> Iterator[list[threading.Thread]]:
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()
        for thread in threads:
            thread.join()


def begun(
    threads: Sequence[threading.Thread], machine: Machine, operator_threads: int = 1
) -> Gathering:
    """Return one that is at its first look: the threads are ready."""
    gathering = Gathering(threads, operator_threads, machine.use, machine.now)
    machine.go_on(MANY, SHORT_S / 2)
    gathering.look()
    return gathering


def cores(thread: threading.Thread) -> set[int]:
    assert thread.native_id is not None
    return os.sched_getaffinity(thread.native_id)


def test_threads_that_wait_often_are_gathered_and_now_and_then_looked_at_again() -> None:
    machine, everywhere = Machine(), os.sched_getaffinity(0)
    with idle_threads() as threads:
        gathering = Gathering(threads, 1, machine.use, machine.now)
        story = [
            ("getting ready", SHORT_S / 2, LOOK_EVERY_S, False),
            ("long passes", SHORT_S * 1.1, LOOK_EVERY_S, False),
            ("short passes", SHORT_S * 0.9, LOOK_EVERY_S, True),
            ("whatever they do gathered", SHORT_S * 9, LOOK_EVERY_S, True),
            ("at rest no more", SHORT_S / 2, FIRST_REST_S, False),
            ("still short", SHORT_S * 0.9, LOOK_EVERY_S, True),
            ("a longer rest", SHORT_S / 2, FIRST_REST_S, True),
            ("at its end", SHORT_S / 2, FIRST_REST_S, False),
            ("long by now", SHORT_S * 1.1, LOOK_EVERY_S, False),
            ("short again", SHORT_S * 0.9, LOOK_EVERY_S, True),
            ("after the first rest", SHORT_S * 0.9, FIRST_REST_S, False),
        ]
        for what, between_waits, seconds, gathered in story:
            machine.go_on(MANY, between_waits, seconds * 1.01)
            gathering.look()
            places = {frozenset(cores(thread)) for thread in threads}
            assert len(places) == 1, what
            assert (len(places.pop()) == 1) == gathered == gathering.gathered, what
        assert [cores(thread) for thread in threads] == [everywhere] * 2
    assert os.sched_getaffinity(0) == everywhere, "whoever looks is left alone"


def test_two_short_looks_say_as_much_as_a_long_one() -> None:
    machine = Machine()
    with idle_threads() as threads:
        gathering = begun(threads, machine)
        machine.go_on(FEWEST_WAITS - 1, SHORT_S / 2)
        gathering.look()
        assert not gathering.gathered, "too few waits to say anything"
        machine.go_on(1, SHORT_S / 2)
        gathering.look()
        assert gathering.gathered


def test_looks_are_some_time_apart() -> None:
    machine = Machine()
    with idle_threads() as threads:
        gathering = begun(threads, machine)
        for gathered in (False, True):
            machine.go_on(MANY, SHORT_S / 2, LOOK_EVERY_S * 0.6)
            gathering.look()
            assert gathering.gathered == gathered


def test_threads_whose_operators_use_several_are_left_alone() -> None:
    machine = Machine()
    with idle_threads() as threads:
        gathering = begun(threads, machine, operator_threads=2)
        assert gathering.look_every_s is None
        machine.go_on(MANY, SHORT_S / 2)
        gathering.look()
        assert not gathering.gathered


def test_threads_that_have_ended_are_passed_over() -> None:
    machine = Machine()
    with idle_threads(1) as ended:
        pass
    with idle_threads(1) as alive:
        gathering = begun([*ended, *alive], machine)
        machine.go_on(MANY, SHORT_S / 2)
        gathering.look()
        assert len(cores(alive[0])) == 1


def test_workers_that_hand_a_ball_to_and_fro_come_to_be_on_one_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    balls: list[SimpleQueue[bool]] = [SimpleQueue(), SimpleQueue()]
    deadline = time.monotonic() + 60

    def play(me: int) -> set[int]:
        """Throw and catch until both are in one place; False ends the other's game as well."""
        if me == 0:
            balls[1].put(True)
        while balls[me].get():
            here = os.sched_getaffinity(threading.get_native_id())
            going_on = len(here) > 1 and time.monotonic() < deadline
            balls[1 - me].put(going_on)
            if not going_on:
                break
        return os.sched_getaffinity(threading.get_native_id())

    def player(me: int) -> Any:
        return lambda tell: play(me)

    first, second = together([player(0), player(1)], lambda: None)
    assert len(first) == 1 or len(second) == 1
    assert len(os.sched_getaffinity(0)) > 1
