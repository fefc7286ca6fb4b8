"""When nothing moves: who waits for whom is said, errors surface all the same, and so does Ctrl-C."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.engine.transports import torchrun, watchdog, worker_threads
from pipekit.engine.transports.processes import worker_pool
from pipekit.engine.transports.watchdog import Watchdog
from tests.engine.examples import data, mlp, pipeline
from tests.engine.gloo import over_gloo
from tests.engine.parametrized import TRANSPORTS

LONG_S = 600
"""For which layers hang: whoever waits for them is found out by the limit of every test."""


class Hangs(nn.Module):
    """Does not return from its n-th forward in training; it lets go of Python meanwhile."""

    def __init__(self, at: int = 3) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.left -= 1
            if self.left == 0:
                HANGING.set()
                OVER.wait(LONG_S)
        return x


class Fails(Hangs):
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError("in a layer")
        return x


OVER, HANGING = threading.Event(), threading.Event()


class FailsMeanwhile(Fails):
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            HANGING.wait(LONG_S)
        return super().forward(x)


@pytest.fixture(autouse=True)
def _nothing_hangs_for_ever() -> Iterator[None]:
    OVER.clear()
    HANGING.clear()
    yield
    OVER.set()
    join_workers()


def join_workers() -> None:
    for thread in threading.enumerate():
        if "pipekit worker" in thread.name:
            thread.join(LONG_S)


class WatchdogsClock:
    """A clock that moves by half a second whenever a watchdog finds all workers where they hang.

    So that no timeout ends a run before, on whatever machine.

    Args:
        patch: puts it in the place of the real one.
        states: expressions that all match what the workers are at when they hang; without any
            it stands still.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *states: str) -> None:
        self.now, self.looked = 0.0, threading.Event()
        look = Watchdog.look

        def looks(dog: Watchdog) -> None:
            said = dog._said(0.0)
            if states and all(re.search(each, said) for each in states):
                self.now += 0.5
            look(dog)
            self.looked.set()

        patch.setattr(Watchdog, "look", looks)
        patch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: self.now))
        for module in (worker_threads, watchdog, worker_pool):
            patch.setattr(module, "LOOK_S", 0.05)


def hanging(stage: int, **options: Any) -> pk.Pipeline:
    layers = list(mlp(6, 6, 6, 3))
    layers.insert(stage, Hangs())
    balance = [1, 1, 1]
    balance[stage] += 1
    return pipeline(nn.Sequential(*layers), "flush", balance, **options)


@TRANSPORTS
def test_who_waits_for_whom_is_said(
    transport: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second after nothing has moved, and then the run ends by its timeout."""
    monkeypatch.setattr(watchdog, "NOTICE_S", 0.6)
    WatchdogsClock(monkeypatch, "worker 0 waits in B", "1 computes F2", "worker 2 waits in F2")
    pipe = hanging(1, transport=transport, timeout=2.0)
    pipe.evaluate(data(1))  # processes are started
    with pytest.raises(pk.Stalled, match="worker 1 computes F2 of stage 1") as caught:
        pipe.train(data(3))
    said = capfd.readouterr().err
    assert "pipekit: no worker has got any further for 1 s" in said
    for text in (said, str(caught.value)):
        waits = (
            r"worker 0 waits in B(\d) of stage 0 for the gradient of microbatch \1 from worker 1"
        )
        assert re.search(waits, text)
        assert "worker 2 waits in F2 of stage 2 for the activation of microbatch 2 from" in text
    with pytest.raises(RuntimeError, match="build the pipeline again"):
        pipe.train(data(3))


def test_what_takes_long_but_moves_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 12 forwards takes 1.5 s of the watchdog's clock, and it looks meanwhile."""
    clock = WatchdogsClock(monkeypatch)

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                clock.looked.clear()
                clock.now += 1.5
                assert clock.looked.wait(LONG_S)
            return x

        def __deepcopy__(self, memo: object) -> "Slow":
            return Slow()

    pipe = pipeline(nn.Sequential(Slow(), *mlp(6, 3)), "flush", [1, 1], timeout=2)
    assert len(pipe.train(data(3)).losses) == 3
    assert clock.now >= 12 * 1.5


def test_a_batch_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    WatchdogsClock(monkeypatch, "worker 0 waits in F4", "worker 1 waits in F4")

    class Loader(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from data(1)
            OVER.wait(LONG_S)

    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], timeout=1.0)
    with pytest.raises(pk.Stalled, match="worker 0 waits in F4 of stage 0 for its batch"):
        pipe.train(Loader(data(3)))


def test_sums_of_gradients_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    WatchdogsClock(monkeypatch, "the sum of gradients with workers 1", "worker 1 computes F3")

    class Half(Hangs):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and bool(x[0, 0] > 50):
                OVER.wait(LONG_S)
            return x

    batches = data(4)
    batches[3][0][:] = 100.0
    pipe = pipeline(nn.Sequential(Half(), *mlp(6, 3)), schedules.pipedream([2]), [2], timeout=1.0)
    with pytest.raises(pk.Stalled, match="the sum of gradients with workers 1"):
        pipe.train(batches)


def test_a_layer_that_hangs_hides_no_error_over_threads() -> None:
    """The batches before the error are finished; who gets no further meanwhile is not waited for."""
    layers = nn.Sequential(Hangs(2), *mlp(6, 6), FailsMeanwhile(1), *mlp(6, 3))
    pipe = pipeline(layers, "flush", [2, 2])
    with pytest.raises(ZeroDivisionError) as caught:
        pipe.train(data(3))
    assert any("pipekit worker 0: still in a layer" in note for note in caught.value.__notes__)


def test_a_second_interrupt_ends_a_run_whose_layer_hangs_over_threads() -> None:
    heeded, over = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        heeded.set()
        if not over.is_set():  # the second one may come too late
            raise KeyboardInterrupt

    def interrupt_twice() -> None:
        for reached in (HANGING, heeded):
            assert reached.wait(LONG_S)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    twice = threading.Thread(target=interrupt_twice)
    twice.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hanging(2).train(data(3))
    finally:
        over.set()
        twice.join()
        signal.signal(signal.SIGINT, before)


def test_a_module_says_who_waits_for_whom(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "NOTICE_S", 0.6)
    WatchdogsClock(monkeypatch, "worker 0 is done", "worker 1 computes F1")
    layers = nn.Sequential(nn.Linear(6, 6), Hangs(2), nn.Linear(6, 3))
    model = pk.PipelinedModule(layers, [1, 2], chunks=3, timeout=2.0, checkpoint="never")
    with pytest.raises(pk.Stalled, match="worker 1 computes F1 of stage 1") as caught:
        model(data(1)[0][0])
    said = capfd.readouterr().err
    assert "pipekit: no worker has got any further for 1 s" in said
    for text in (said, str(caught.value)):
        assert "worker 0 is done" in text
    with pytest.raises(RuntimeError, match="stage 1 is still in a layer of a forward"):
        model(data(1)[0][0])
    OVER.set()
    join_workers()
    expected = nn.Sequential(layers[0], *layers[2:])(data(1)[0][0])
    torch.testing.assert_close(model(data(1)[0][0]), expected)


def test_torchrun_ends_a_run_that_hangs() -> None:
    """Each process says what its own worker is at."""

    def run() -> str:
        said, ended = [""], threading.Event()

        def end(stalled: object) -> None:  # in place of the process's end
            said[0] = str(stalled)
            ended.set()

        torchrun._end = end
        mine = "worker 0 waits in B|worker 1 computes F2|worker 2 waits in F2"
        WatchdogsClock(pytest.MonkeyPatch(), mine)
        pipe = hanging(1, transport="distributed", timeout=1.0)
        threading.Thread(target=pipe.train, args=(data(3),), daemon=True).start()
        assert ended.wait(LONG_S)
        return said[0]

    first, second, third = over_gloo(run, 3)
    assert re.search(r"worker 0 waits in B\d of stage 0 for the gradient", first)
    assert "worker 1 computes F2 of stage 1" in second
    assert "worker 2 waits in F2 of stage 2 for the activation" in third
