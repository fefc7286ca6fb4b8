"""Workers, or the whole program, are ended at random moments; the training is resumed.

A trial trains two epochs by one of the methods, each worker a process, with checkpoints every few
batches.  At a random moment a worker is killed, stopped or runs out of memory, or the process that
starts workers or the whole program is killed.  Then, as after a crash, everything is built anew,
the default generator is seeded otherwise, and the training is resumed, over threads or over
processes, where it may be struck again.  Now and then the newest checkpoint is damaged first.

In the end the last checkpoint, which holds weights, stashed versions, running statistics, the
states of optimizer, scheduler and random numbers and all losses, is compared with that of the same
training left in peace, over threads.
"""

import multiprocessing.forkserver
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from experiments.attacks.left import Snapshot, left, start_fork_server
from experiments.attacks.trainings import BATCHES, EPOCHS, METHODS, PACE_S, Setting
from experiments.pipedream.checkpoints import Struck, differences, worker_processes
from pipekit import Stalled, WorkerDied
from pipekit.engine.checkpoints import files as checkpoints

STALLED_S = 4.0  # the timeout of a training whose worker is stopped
BEGUN_S = 120.0  # by then a program has written its first checkpoint
ENDED_S = 30.0  # by then, also on a busy machine, all processes of a killed program have ended

PROGRAM = """
import sys
from pathlib import Path
from experiments.attacks.trainings import Setting
method, optimizer, every, folder, seed = sys.argv[1:]
Setting(method, optimizer, int(every)).train(Path(folder), "distributed", int(seed))
"""


def limit_memory(pid: int) -> None:
    """Let a process have no more address space than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def end_fork_server(_: int) -> None:
    """Kill the process that starts workers."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGKILL)


def by_signal(number: signal.Signals) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


ENDS: dict[str, Callable[[int], None]] = {
    "SIGKILL": by_signal(signal.SIGKILL),
    "SIGTERM": by_signal(signal.SIGTERM),
    "SIGSTOP": by_signal(signal.SIGSTOP),
    "memory limit": limit_memory,
    "fork server": end_fork_server,
}
"""What is done to one worker's process, by its number."""

PROGRAM_ENDS = {"program, SIGKILL": signal.SIGKILL, "program, SIGTERM": signal.SIGTERM}
"""What is done to the whole program."""

SHARES = {
    "SIGKILL": 8,
    "SIGTERM": 3,
    "SIGSTOP": 2,
    "memory limit": 3,
    "fork server": 2,
    "program, SIGKILL": 1,
    "program, SIGTERM": 1,
}
"""How often each of them comes, in relation to the others."""

SAYS: dict[str, tuple[Any, str]] = {
    "SIGKILL": (WorkerDied, "SIGKILL, killed"),
    "SIGTERM": (WorkerDied, "SIGTERM"),
    "SIGSTOP": (Stalled, "no worker has got any further"),
    "memory limit": ((WorkerDied, RuntimeError, MemoryError, OSError), ""),
    "fork server": (WorkerDied, "fork server"),
}
"""What the training then raises, and what its message has in it."""


def strike(draw: random.Random, end: str, known: set[int]) -> None:
    """Do it to one of the workers, at some moment from now, if any is left; note them all."""
    time.sleep(draw.uniform(0, 3 * PACE_S))
    known |= set(worker_processes().values())
    if workers := sorted(worker_processes().items()):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
            ENDS[end](draw.choice(workers)[1])


def wrong(end: str, error: Exception) -> str:
    """Return what is wrong with what a struck training raised, or nothing."""
    kinds, words = SAYS[end]
    notes = " ".join(getattr(error, "__notes__", []))
    if not isinstance(error, kinds) or words not in str(error):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, WorkerDied) and "resume(" not in notes:
        return f"no word of how to resume: {error} {notes}"
    return ""


def end_program(setting: Setting, folder: Path, draw: random.Random, end: str) -> str | None:
    """Train in a program of its own, which is killed; return what :func:`attempt` does."""
    with tempfile.TemporaryDirectory(prefix="pipekit-attacked-") as temporary:
        program = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                *map(str, setting),
                str(folder),
                str(draw.getrandbits(32)),
            ],
            env={**os.environ, "TMPDIR": temporary},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        before = set(folder.glob("batch-*"))
        deadline = time.monotonic() + BEGUN_S
        while program.poll() is None and set(folder.glob("batch-*")) <= before:
            if time.monotonic() > deadline:
                program.kill()
                return f"the program wrote no checkpoint within {BEGUN_S:.0f} s"
            time.sleep(0.01)
        time.sleep(draw.uniform(0, EPOCHS * BATCHES * PACE_S))
        program.send_signal(PROGRAM_ENDS[end])
        if program.wait() != -PROGRAM_ENDS[end]:
            return None if program.returncode == 0 else f"exit code {program.returncode}"
        deadline = time.monotonic() + ENDED_S
        while found := session(program.pid) or os.listdir(temporary):
            if time.monotonic() > deadline:
                return f"left: {found}"
            time.sleep(0.05)
    return ""


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(number) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def damage(folder: Path, draw: random.Random) -> str:
    """Harm a file of the newest complete checkpoint, if there is another one; return how."""
    complete = [home for home in sorted(folder.glob("batch-*")) if checkpoints.is_complete(home)]
    if len(complete) < 2:
        return ""
    path = draw.choice(checkpoints.parts_of(complete[-1])).path
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    how = draw.choice(["cut short", "a bit flipped"])
    if how == "cut short":
        content = content[:at]
    else:
        content[at] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return how


def attempt(
    setting: Setting, folder: Path, transport: str, draw: random.Random, end: str, at: int
) -> str | None:
    """Train on, and strike before batch ``at`` if there is an ``end``.

    Returns:
        What is wrong with what came of it, "" if nothing is; None if it has come to its end.
    """
    if end in PROGRAM_ENDS:
        return end_program(setting, folder, draw, end)

    def around(epoch: int, batches: Any) -> Any:
        if end and at // BATCHES == epoch:
            return Struck(batches, at % BATCHES, partial(strike, draw, end, known))
        return batches

    known: set[int] = set()
    start_fork_server()
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


def trial(seed: int, method: str, most: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each time that a training by a method was struck, ``most`` at most."""
    draw = random.Random(seed)
    setting = Setting.drawn(draw, method)
    with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as folder:
        whole, saved = Path(folder, "whole"), Path(folder, "struck")
        setting.train(whole, "threads", 0)
        rows: list[dict[str, Any]] = []
        transport = "distributed"
        while True:
            struck = transport == "distributed" and len(rows) < most
            end = draw.choices(list(SHARES), list(SHARES.values()))[0] if struck else ""
            at = draw.randrange(EPOCHS * BATCHES)
            failure = attempt(setting, saved, transport, draw, end, at)
            if failure is None:
                break
            harm = damage(saved, draw) if draw.random() < 0.25 else ""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                home = checkpoints.newest(saved)
            warnings.simplefilter("ignore", UserWarning)  # it comes again
            transport = draw.choice(["threads", "distributed"])
            row = {"trial": seed, **setting._asdict(), "end": end, "before batch": at}
            row["killed"] = end if end in ("fork server", *PROGRAM_ENDS) else "worker"
            row["from batch"] = int(home.name.split("-")[1]) if home else 0
            row |= {"damage": harm, "warned": bool(caught), "resumed over": transport}
            rows.append(row | {"failure": failure})
            if not end:  # it would fail for ever
                break
        newest = checkpoints.newest(whole), checkpoints.newest(saved)
        equal = None not in newest and not differences(*newest)  # type: ignore[arg-type]
        yield from ({**row, "equal": equal} for row in rows)


def attack(tries: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each of so many strikes, on all methods in turn."""
    names = list(METHODS)
    random.Random(seed).shuffle(names)
    done = number = 0
    while done < tries:
        for row in trial(seed + number, names[number % len(names)], tries - done):
            done += 1
            yield row
        number += 1
