"""Remains of a training in this process: nothing, if all is well."""

import gc
import multiprocessing.forkserver
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

PATIENCE_S = 60.0  # in which whatever was told to end has ended, also on a busy machine


class Snapshot(NamedTuple):
    """The resources of this process, and the settings that a run changes while it lasts."""

    threads: Counter[str]  # pipekit's, by name
    processes: set[int]  # the workers', and this process's children
    files: Counter[str]  # open ones by kind, "socket" or "pipe" say
    temporary: set[str]  # names in that folder; Python deletes the fork server's at its exit
    settings: tuple[object, ...]

    @classmethod
    def now(cls, temporary: Path) -> "Snapshot":
        gc.collect()
        return cls(
            Counter(t.name for t in threading.enumerate() if "pipekit" in t.name),
            worker_processes() | children(os.getpid()),
            open_files(),
            {path.name for path in temporary.iterdir() if not path.name.startswith("pymp-")},
            (
                torch.get_num_threads(),
                sys.getswitchinterval(),
                signal.getsignal(signal.SIGINT),
                torch.is_grad_enabled(),
            ),
        )

    def more_than(self, before: "Snapshot") -> list[str]:
        """Return the resources that were not there before, in words."""
        found = [f"thread {name}" for name in self.threads - before.threads]
        found += [f"process {pid}" for pid in sorted(self.processes - before.processes)]
        files = self.files - before.files
        found += [f"{count} open {kind}" for kind, count in sorted(files.items())]
        found += [f"temporary {name}" for name in sorted(self.temporary - before.temporary)]
        if self.settings != before.settings:
            found.append(f"settings {self.settings} for {before.settings}")
        return found


def left(before: Snapshot, temporary: Path, ended: Iterable[int] = ()) -> list[str]:
    """Return the remains, once all had time to go; ``ended`` processes must be gone."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = Snapshot.now(temporary).more_than(before)
        found += [f"process {pid}" for pid in ended if is_alive(pid)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found |= {int(child) for child in task.read_text().split()}
    return found


def worker_processes() -> set[int]:
    """Return the live processes of this process's fork server."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return children(server) if server and Path(f"/proc/{server}").exists() else set()


def open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # that of the folder just listed
            continue
        found[re.sub(r":\[\d+\]$", "", target)] += 1  # without its number
    return found
