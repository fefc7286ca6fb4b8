"""Uses that cannot be right, at random: two threads on one pipeline, processes under torchrun that
read other or shorter data, a torchrun that is killed, and files of cached trainings that are cut.

Each ends with the result that is right, or with the sentence that says what is wrong.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.attacks.interrupts import pipeline
from experiments.attacks.left import children, is_alive
from experiments.study.trainings import Course, Trainings

LIMIT_S = 120.0
COUNT = 20  # batches of a training
TOLD = "under torchrun every process reads all data itself"


def batches(seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(8, n, generator=generator) for n in (6, 3)) for _ in range(COUNT)]  # type: ignore[misc]


def two_threads(draw: random.Random) -> tuple[str, str]:
    """Train in one thread, and evaluate in another one meanwhile."""
    alone = pipeline("threads")
    before, losses = alone.evaluate(batches()), alone.train(batches()).losses
    right: dict[str, list[Any]] = {
        "train": [losses],
        "evaluate": [before, alone.evaluate(batches())],
    }
    together, found = pipeline("threads"), {}
    calls: dict[str, Callable[[], Any]] = {
        "train": lambda: together.train(batches()).losses,
        "evaluate": lambda: together.evaluate(batches()),
    }

    def call(name: str, wait_s: float) -> None:
        time.sleep(wait_s)
        try:
            found[name] = calls[name]()
        except Exception as error:
            found[name] = error

    threads = [threading.Thread(target=call, args=(name, draw.uniform(0, 0.02))) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    refused = [name for name, each in found.items() if "a run is under way" in str(each)]
    odd = [
        f"{n}: {found.get(n, 'hangs')!r}"
        for n in calls
        if n not in refused and found.get(n) not in right[n]
    ]
    return " and ".join(refused) + " refused" if refused else "one after the other", ", ".join(odd)


def launched(*arguments: str) -> "subprocess.Popen[str]":
    """Run this file under torchrun, in two processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, *launch, "-m", "experiments.attacks.uses", *arguments],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def other_data(draw: random.Random) -> tuple[str, str]:
    """Have one process under torchrun read other batches, or fewer."""
    kind, rank, at = (
        draw.choice(["other", "fewer", "shuffled"]),
        draw.choice("01"),
        draw.randrange(1, COUNT),
    )
    with launched(kind, rank, str(at)) as job:
        try:
            said, _ = job.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            return kind, f"batch {at} of worker {rank}: hangs"
    named = kind == "shuffled" or kind == "fewer" or f"batch {at} of worker" in said
    told = job.returncode == 1 and TOLD in said and named
    return (
        kind,
        "" if told else f"batch {at} of worker {rank}: exit code {job.returncode}: {said[-2000:]}",
    )


def killed_agent(draw: random.Random) -> tuple[str, str]:
    """Kill torchrun in the midst of a training, with a stopped worker or without."""
    with launched("endless", "2", "0") as job:
        assert job.stdout
        while "begun" not in job.stdout.readline():
            pass
        workers, stopped = sorted(children(job.pid)), draw.random() < 0.5
        if stopped:
            os.kill(workers[0], signal.SIGSTOP)
        time.sleep(draw.uniform(0, 0.5))
        job.kill()
        end = time.monotonic() + LIMIT_S
        while (left := [pid for pid in workers if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return "with a stopped worker" if stopped else "all running", f"left: {left}" if left else ""


@dataclass(frozen=True)
class Trained:
    """A training that is kept in a file."""

    seed: int


def keep(setting: Trained) -> Course:
    return Course.of({"label": "measured"}, epoch=[1.0, 2.0], accuracy=[0.5, 0.5 + setting.seed])


def cached_files(draw: random.Random) -> tuple[str, str]:
    """Damage the file of a cached training: it is named, or the training made again."""
    with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as folder:
        cached, setting = Trainings(keep, Path(folder)), Trained(draw.randrange(9))
        file = cached.file(setting)
        file.write_text(keep(setting).model_dump_json())
        whole = file.read_bytes()
        kinds = {
            "cut": whole[: draw.randrange(len(whole))],
            "other": draw.choice([b"null", b"[]", b"{}", b'{"points": 1}', b"\xff\xfe"]),
        }
        kind = draw.choice(list(kinds))
        file.write_bytes(kinds[kind])
        try:
            (course,) = cached.courses([setting])
        except Exception as error:
            return kind, "" if file.name in str(error) else f"{type(error).__name__}: {error}"
        return kind, "" if course == keep(setting) else f"{kinds[kind]!r} is believed"


USES: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "two threads": two_threads,
    "cached files": cached_files,
    "other data": other_data,
    "killed agent": killed_agent,
}
"""Each returns what it did, and the fault, or nothing."""


def attack(tries: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each of so many uses, of all kinds in turn."""
    names = list(USES)
    for number in range(tries):
        way = names[number % len(names)]
        outcome, failure = USES[way](random.Random(seed + number))
        yield {"way": way, "outcome": outcome, "failure": failure}


def main(kind: str, rank: str, at: str) -> None:
    """Be a process under torchrun whose data are its own, if it is that ``rank``."""
    read, mine = batches(), os.environ["RANK"] == rank
    if mine and kind == "other":
        read[int(at)] = batches(seed=2)[0]
    if mine and kind == "fewer":
        del read[int(at) :]
    if mine and kind == "shuffled":
        random.shuffle(read)

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            time.sleep(0.01)
            yield read[0]
            print("begun", flush=True)

    stream = endless() if kind == "endless" else iter(read)
    pipeline("distributed").train(stream, steps=10**4 if kind == "endless" else COUNT)


if __name__ == "__main__":
    main(*sys.argv[1:])
