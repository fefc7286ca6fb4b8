"""The folder where a training's checkpoints go, over several runs, and who may write there."""

import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch

from pipekit.engine.calls import deferred_interrupts
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.checkpoints.resume_point import Position, ResumePoint, table_id
from pipekit.engine.config import CheckpointConfig, Start
from pipekit.engine.options import Checkpoints
from pipekit.schedules.lowering.boundaries import boundaries


class CheckpointFolder:
    """The folder of a training, all checkpoints in which are its own."""

    def __init__(self, agree: Callable[[Callable[[], Any]], Any]) -> None:
        self._agree = agree  # calls a function in one of the training's processes, for all of them
        self._folder: Path | None = None
        self._attempt, self._training = "", ""
        self._known: set[str] = set()  # this attempt, and those that it goes on from
        self._lock = FolderLock()
        self._rng = torch.get_rng_state()

    def resume(self, folder: Path) -> ResumePoint | None:
        home = self._agree(lambda: checkpoints.newest(folder))
        self._take(folder)
        if home is None:
            return None
        point = ResumePoint.read(home)
        self._training = point.about["training"]
        return point

    def begin(self, point: ResumePoint | None, batches: object) -> None:
        """Let a run begin: to be called before its data draw any random number.

        A loader may shuffle by torch's default generator or by one of its own; their states are
        those of the run's beginning.
        """
        holders = batches, getattr(batches, "sampler", None)
        found = (getattr(each, "generator", None) for each in holders)
        drawn = dict.fromkeys([torch.default_generator, *filter(None, found)])
        if point:
            states = point.about["rng"].split(len(torch.get_rng_state()))
            for each, state in zip(drawn, states, strict=False):
                each.set_state(state.clone())  # it reads from the beginning of memory
        self._rng = torch.cat([each.get_state() for each in drawn])

    @contextmanager
    def claimed(self, path: Path) -> Iterator[None]:
        """Have a folder, given by its absolute path, for this training alone for a while.

        Raises:
            ValueError: it holds checkpoints of another training, or one is writing there.
            OSError: nothing can be written there.
        """
        path.mkdir(parents=True, exist_ok=True)
        try:
            if holder := self._agree(lambda: self._lock.take(path)):
                raise ValueError(
                    f"another training writes its checkpoints to {path} ({holder}): wait for its "
                    f"end, or name another folder"
                )
            if path != self._folder:
                checkpoints.require_empty(path)
                self._take(path)
            elif self._agree(lambda: checkpoints.attempts(path)) - self._known:
                raise ValueError(
                    f"another process has gone on with this training, and has written checkpoints "
                    f"to {path}: call resume({str(path)!r}) to go on from there, or name another "
                    f"folder"
                )
            self._agree(lambda: checkpoints.clear(path))
            yield
        finally:
            self._lock.give_back()

    def config(
        self, asked: Checkpoints, start: Start, position: Position, balance: Sequence[int]
    ) -> CheckpointConfig:
        """Return what the workers have to know to write checkpoints to the claimed folder."""
        assert self._folder
        about = {
            "runs": position.runs,
            "batches": position.batches + start.offset,
            "offset": start.offset,
            "planned": start.offset + len(start.schedule),
            "microbatches": start.microbatches,
            "table": table_id(start.schedule, balance),
            "balance": list(balance),
            "rng": self._rng,
            "training": self._training,
            "attempt": self._attempt,
        }
        parts = sum(map(len, start.schedule.stage_workers))
        cuts = boundaries(start.schedule, asked.every)
        ends = boundaries(start.schedule, every=1)
        return CheckpointConfig(self._folder, about, parts, cuts, asked.keep, ends)

    def _take(self, folder: Path) -> None:
        self._folder = folder
        self._attempt, self._training = self._agree(lambda: (token_hex(4), token_hex(16)))
        self._known = self._agree(lambda: checkpoints.attempts(folder)) | {self._attempt}


class FolderLock:
    """A lock on a folder, which ends with its process; none where a file system has no locks."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._path = Path()

    @deferred_interrupts()  # whatever is open is known when one comes
    def take(self, folder: Path) -> str | None:
        """Take the lock of a folder; return who has it, if it is somebody else's."""
        path = folder / ".lock"
        while self._file is None:
            # Not through a link, to a file whose beginning would be written over.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise ValueError(f"{path} is not a file: delete it")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file, 1000, 0).decode(errors="replace")
                os.close(file)
                return holder or "another process"
            except OSError:
                os.close(file)
                return None
            # The last holder may have deleted the file that was opened here.
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(file).st_ino:
                    self._file, self._path = file, path
                    continue
            os.close(file)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return None

    @deferred_interrupts()  # one between the lines would leave the file open
    def give_back(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None
