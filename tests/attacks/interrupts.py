"""Interrupts at random moments, over both transports; afterwards nothing may be left.

A process of its own trains again and again, and gets SIGINT, as from Ctrl-C, at a random moment.
The call then raises KeyboardInterrupt, nothing is left of it (left.py), and the same training,
begun or taken up again, has the bits of an undisturbed one.
"""

import faulthandler
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from pipekit import Checkpoints, Pipeline, PipelinedModule, schedules
from pipekit.engine.transports.processes.forkserver import forkserver
from tests.attacks.left import Snapshot, left
from tests.attacks.trainings import BALANCE, OPTIMIZERS, network

LIMIT_S = 30.0  # of a try, also on a busy machine
AGAIN = 0.2  # of the tries are followed by a whole training

Bits = list[Tensor]


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(8, n, generator=generator) for n in (6, 3)) for _ in range(4)]  # type: ignore[misc]


def pipelined(transport: str, saved: bool, folder: Path) -> Bits:
    """Train a pipeline of two stages, from its newest checkpoint if there is one; evaluate it."""
    made = Pipeline(
        network(),
        schedules.two_bw(2, 2),
        balance=BALANCE[2],
        optimizer=OPTIMIZERS["SGD"],
        loss=nn.MSELoss(),
        transport=transport,
    )
    # A traceback may keep it, and between calls its processes wait.
    with closing(made) as pipe:
        for _ in range(pipe.resume(folder), 2):
            checkpoints = Checkpoints(folder, every=1) if saved else None
            pipe.train(batches(), checkpoints=checkpoints)
        value = pipe.evaluate(batches())
        return [torch.tensor(value), *pipe.state_dict().values()]


def in_a_loop(folder: Path) -> Bits:
    """Train a pipelined module of two stages in a user's loop."""
    module = PipelinedModule(network(), BALANCE[2], chunks=2)
    optimizer = OPTIMIZERS["SGD"](module.parameters())
    for _ in range(4):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()
            optimizer.step()
    return list(module.state_dict().values())


WAYS: dict[str, Callable[[Path], Bits]] = {  # the folder is for checkpoints
    "threads": partial(pipelined, "threads", False),
    "processes": partial(pipelined, "distributed", False),
    "threads, saved": partial(pipelined, "threads", True),
    "processes, saved": partial(pipelined, "distributed", True),
    "module": in_a_loop,
}


class Trainings:
    """Trainings in one of the :data:`WAYS`, in this process."""

    def __init__(self, way: str) -> None:
        self.way, self._train = way, WAYS[way]
        self._folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
        self._temporary = Path(tempfile.gettempdir())
        forkserver()  # which starts workers, and stays until this process ends
        self._unraised: list[Any] = []  # exceptions of destructors and threads
        sys.unraisablehook = threading.excepthook = self._unraised.append
        self.bits = self._run()
        took = []
        for _ in range(3):
            start = time.monotonic()
            self._run()
            took.append(time.monotonic() - start)
        self.seconds = median(took)
        gc.collect()
        gc.freeze()  # torch and all that: garbage is looked for after every try
        self._before = Snapshot.now(self._temporary)

    def interrupted(self, moment: float, again: bool) -> dict[str, Any]:
        """Train, interrupt at a moment, a share of a training's seconds, and maybe train again."""
        sent: list[float] = []

        def send() -> None:
            sent.append(time.monotonic())
            os.killpg(os.getpgrp(), signal.SIGINT)

        timer = threading.Timer(moment * self.seconds, send)
        start = time.monotonic()
        outcome, failure = "ended", ""
        try:
            try:
                timer.start()
                self._run()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            outcome = "interrupted"
        except BaseException as error:
            outcome, failure = "failed", f"{type(error).__name__}: {error}"
        stop = time.monotonic()
        if outcome == "ended":  # the machine was busier when it was measured
            self.seconds = stop - start
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if outcome == "ended" and sent and not self._unraised and stop - sent[0] > 0.1:
            outcome, failure = "failed", "somebody has swallowed the interrupt"
        odd = [each for each in self._unraised if each.exc_type is not KeyboardInterrupt]
        failure = failure or ", ".join(f"nobody saw {each.exc_value!r}" for each in odd)
        if outcome == "ended" and self._unraised:
            outcome = "lost in a destructor"  # by Python, which cannot raise it there
        failure = failure or ", ".join(left(self._before, self._temporary))
        if not failure and again:
            failure = self._difference()
        row = {"way": self.way, "moment": round(moment, 3)}
        return row | {"outcome": outcome, "failure": failure}

    def _run(self) -> Bits:
        self._unraised.clear()
        shutil.rmtree(self._folder, ignore_errors=True)  # which an interrupt may have cut off
        self._folder.mkdir(exist_ok=True)
        return self._train(self._folder)

    def _difference(self) -> str:
        """Train to the end, from the checkpoints if any are left; say if the bits differ."""
        try:
            bits = self._train(self._folder)
        except Exception as error:
            return f"afterwards: {type(error).__name__}: {error}"
        equal = all(map(torch.equal, bits, self.bits)) and len(bits) == len(self.bits)
        return "" if equal else "afterwards: other bits"


def interrupt(way: str, tries: int, seed: int) -> Generator[dict[str, Any], None, None]:
    """Yield a row for each of so many interrupts in one way; after a fault, of a new process."""
    done = 0
    while done < tries:
        for row in _rows(way, tries - done, seed + done):
            done += 1
            yield row


def _rows(way: str, tries: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows until a try hangs, or its remains could harm the next one."""
    with (
        tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as temporary,
        tempfile.TemporaryFile("w+") as said,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.interrupts", way, str(tries), str(seed)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "TMPDIR": temporary},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdout is not None
        try:
            for _ in range(tries):
                if line := process.stdout.readline():
                    row = json.loads(line)
                else:
                    said.seek(0)
                    dead = f"it hung or died: {said.read()[-3000:]}"
                    row = {"way": way, "moment": -1.0, "outcome": "failed", "failure": dead}
                yield row
                if row["failure"]:
                    break
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def main(way: str, tries: str, seed: str) -> None:
    """Print a row for each try, as a line of JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw, trainings = random.Random(int(seed)), Trainings(way)
    for _ in range(int(tries)):
        faulthandler.dump_traceback_later(LIMIT_S + 4 * trainings.seconds, exit=True)
        again = way.endswith("saved") or draw.random() < AGAIN
        row = trainings.interrupted(draw.uniform(0, 1.1), again)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
