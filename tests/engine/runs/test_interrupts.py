"""An interrupt ends a run after the batches that were on their way."""

import os
import signal
import threading
import time

import pytest

from pipekit.engine import BatchDone
from pipekit.engine.transports.threads import ThreadRunner
from tests.engine.examples import (
    Trained,
    by_equations,
    data,
    mixed,
    pipeline,
    unlike,
)
from tests.engine.parametrized import TRANSPORTS
from tests.engine.runs.test_early_end import FREE, Gated


@TRANSPORTS
def test_an_interrupt_leaves_the_batches_that_were_on_their_way(
    transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C, or a notebook's stop button."""
    batches = data(40)
    gated = Gated(batches)
    heard: list[float] = []

    def listen(done: BatchDone) -> None:
        heard.append(done.loss)
        if done.number == 3:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            limit = time.monotonic() + 60
            while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                assert time.monotonic() < limit, "the interrupt was not handled"
                time.sleep(0.001)
            gated.gate.set()

    pipe = pipeline(mixed(), "pipedream", [2, 3, 3], transport=transport)
    with pytest.raises(KeyboardInterrupt):
        pipe.train(gated, on_batch=listen)
    assert "a second interrupt" in capsys.readouterr().err
    assert len(heard) <= FREE + 1
    truth = by_equations(mixed(), batches[: len(heard)], "pipedream", [2, 3, 3])
    assert unlike(Trained(heard, pipe.state_dict()), truth) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_no_run_can_end_early_the_first_interrupt_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must not say that only the batches on their way are finished, and then do all."""
    monkeypatch.setattr(ThreadRunner, "can_end", False)  # as under torchrun

    def listen(done: BatchDone) -> None:
        if done.number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    pipe = pipeline(mixed(), "flush", [2, 3, 3])
    with pytest.raises(KeyboardInterrupt):
        pipe.train(data(6), on_batch=listen)
    assert "a second interrupt" not in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="build the pipeline again"):
        pipe.state_dict()
