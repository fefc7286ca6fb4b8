"""Kill workers at random moments; the training is resumed.

A trial trains two epochs by one of the methods, each worker a process, with checkpoints every few
batches. At a random moment a worker or the process that starts workers is struck. Then everything
is built anew, the default generator seeded otherwise, and the training resumed, over threads or
processes, where it may be struck again.  In the end its last checkpoint is compared with that of an
undisturbed training, over threads.
"""

import multiprocessing.forkserver
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipekit import Stalled, WorkerDied
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.transports.processes.forkserver import forkserver
from tests.attacks.left import Snapshot, left
from tests.attacks.trainings import BATCHES, EPOCHS, METHODS, PACE_S, Setting
from tests.engine.checkpoints.killing import Struck, differences, worker_processes

STALLED_S = 4.0  # the timeout of a training whose worker is stopped


def limit_memory(pid: int) -> None:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)


def kill_fork_server(_: int) -> None:
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGKILL)


def by_signal(number: signal.Signals) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


# SystemError is Python's, of C code that returns without a word if it gets no memory.
NO_MEMORY = WorkerDied, RuntimeError, MemoryError, OSError, SystemError
# Strikes at one worker's process: how often in relation, how, the error, words of its message.
STRIKES: dict[str, tuple[int, Callable[[int], None], Any, str]] = {
    "SIGKILL": (8, by_signal(signal.SIGKILL), WorkerDied, "SIGKILL, killed"),
    "SIGTERM": (3, by_signal(signal.SIGTERM), WorkerDied, "SIGTERM"),
    "SIGSTOP": (2, by_signal(signal.SIGSTOP), Stalled, "no worker has got any further"),
    "memory limit": (3, limit_memory, NO_MEMORY, ""),
    "fork server": (2, kill_fork_server, WorkerDied, "fork server"),
}
SHARES = {end: share for end, (share, *_) in STRIKES.items()}


def strike(draw: random.Random, end: str, known: set[int]) -> None:
    """Strike one of the workers, at some moment from now, if any is left; note them all."""
    time.sleep(draw.uniform(0, 3 * PACE_S))
    workers = worker_processes()
    known |= {pid for _, pid in workers}
    if workers:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has just gone
            STRIKES[end][1](draw.choice(workers)[1])


def wrong(end: str, error: Exception) -> str:
    """Return the fault of a struck training's error, or nothing."""
    _, _, kinds, words = STRIKES[end]
    notes = " ".join(getattr(error, "__notes__", []))
    if not isinstance(error, kinds) or words not in str(error):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, WorkerDied) and "resume(" not in notes:
        return f"no word of how to resume: {error} {notes}"
    return ""


def attempt(
    setting: Setting, folder: Path, transport: str, draw: random.Random, end: str, at: int
) -> str | None:
    """Train on, and strike before batch ``at`` if there is an ``end``.

    Returns the fault, or ""; None if the training has come to its end.
    """

    def around(epoch: int, batches: Any) -> Any:
        if end and at // BATCHES == epoch:
            return Struck(batches, at % BATCHES, partial(strike, draw, end, known))
        return batches

    known: set[int] = set()
    forkserver()  # which starts workers, and stays until this process ends
    temporary = Path(tempfile.gettempdir())
    before = Snapshot.now(temporary)
    timeout = STALLED_S if end == "SIGSTOP" else None
    try:
        setting.train(folder, transport, draw.getrandbits(32), around, timeout)
    except Exception as error:
        failure = wrong(end, error) if end else f"{type(error).__name__}: {error}"
    else:
        return None
    return failure or ", ".join(left(before, temporary, known))


def trial(seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each strike at a training; one of them may be struck several times."""
    draw = random.Random(seed)
    method = list(METHODS)[seed % len(METHODS)]
    setting = Setting(method, draw.choice(["SGD", "Adam"]), draw.choice([1, 2, 5]))
    with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as folder:
        whole, saved = Path(folder, "whole"), Path(folder, "struck")
        setting.train(whole, "threads", 0)
        rows: list[dict[str, Any]] = []
        transport = "distributed"
        while True:
            struck = transport == "distributed"
            end = draw.choices(list(SHARES), list(SHARES.values()))[0] if struck else ""
            at = draw.randrange(EPOCHS * BATCHES)
            failure = attempt(setting, saved, transport, draw, end, at)
            if failure is None:
                break
            home = checkpoints.newest(saved)
            transport = draw.choice(["threads", "distributed"])
            row = {"trial": seed, **setting._asdict(), "end": end, "before batch": at}
            row["killed"] = end if end == "fork server" else "worker"
            row["from batch"] = int(home.name.split("-")[1]) if home else 0
            rows.append(row | {"resumed over": transport, "failure": failure})
            if not end:  # it would fail for ever
                break
        newest = checkpoints.newest(whole), checkpoints.newest(saved)
        equal = None not in newest and not differences(*newest)  # type: ignore[arg-type]
        for row in rows:
            unequal = "" if equal else "other bits at the end"
            yield row | {"equal": equal, "failure": row["failure"] or unequal}
