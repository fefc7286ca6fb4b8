"""What processes under torchrun tell when something goes wrong: to one another, through torchrun's
store; to torchrun, through its file of errors; and to the user, in few lines.

Nothing is written while all is well.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import torch
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from pipekit.engine.transport import Aborted
from pipekit.engine.transports.own_data import unequal

GRACE_S = 3.0  # for the cause to arrive after its consequences
_LIBRARIES = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)

_AT, _ENDED, _FAILED = "at", "ended", "failed"


class Noticeboard:
    """The notes of all workers of a run, as one of them sees them.

    Args:
        run: its number in these processes.
        worker: this one.
        workers: their number.
    """

    def __init__(self, run: int, worker: int, workers: int) -> None:
        self._store = PrefixStore(f"pipekit run {run}", _get_default_store())
        self._worker, self._workers, self._stands = worker, range(workers), False
        self._ended: int | None = None

    def ended(self, count: int) -> None:
        """Note that this process's data have ended after so many batches, before the table."""
        self._ended = count
        self._put(_ENDED, str(count))

    def failed(self, error: BaseException) -> None:
        """Note what has ended the run here."""
        self._put(_FAILED, in_one_line(error))

    def cause(self) -> str:
        """Return what ended the run in another process, once it is known."""
        end = time.monotonic() + GRACE_S
        while not (found := self._all(_FAILED)) and time.monotonic() < end:
            time.sleep(0.05)
        for worker, said in found.items():
            return f"worker {worker} has failed: {said}"
        return "another worker's process has ended without a word; torchrun says below how"

    def look(self, lines: Sequence[str] | None, count: int) -> None:
        """Note what this worker is at while it gets no further; None: it does.

        Raises ValueError if another's data have ended before a batch that was read here.
        """
        if (lines is not None) is not self._stands:
            self._stands = lines is not None
            self._put(_AT, "".join(lines or ()))
        if lines is None:
            return
        for worker, ended in self._all(_ENDED).items():
            if int(ended) < count or self._ended not in (None, int(ended)):
                mine = f"{count} or more" if self._ended is None else str(count)
                raise ValueError(unequal({worker: ended, self._worker: mine}))

    def others(self) -> list[str]:
        """Return what others are at that get no further, either."""
        return [line for worker, line in self._all(_AT).items() if line and worker != self._worker]

    def _put(self, kind: str, text: str) -> None:
        with suppress(RuntimeError):  # whoever has the store is gone
            self._store.set(f"{kind} {self._worker}", text)

    def _all(self, kind: str) -> dict[int, str]:
        found = {}
        with suppress(RuntimeError):
            for worker in self._workers:
                if self._store.check([key := f"{kind} {worker}"]):
                    found[worker] = self._store.get(key).decode()
        return found


def in_one_line(error: BaseException) -> str:
    """Return an error's type, words and notes."""
    notes = getattr(error, "__notes__", [])
    return " ".join([f"{type(error).__name__}:", *f"{error} {' '.join(notes)}".split()])


def tell_torchrun(text: str) -> None:
    """Have torchrun's summary say what has ended this process."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):
            about = {"py_callstack": text, "timestamp": str(int(time.time()))}
            said = {"message": {"message": text, "extraInfo": about}}
            Path(path).write_text(json.dumps(said))


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def telling(hook: Hook) -> Hook:
    """Return a hook for errors that nobody catches: one line for what another process has caused,
    else the traceback without most lines of torch and pipekit.
    """

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Aborted):
            tell_torchrun(str(error))
            print(f"pipekit: {error}", file=sys.stderr)
            return
        tell_torchrun(in_one_line(error))
        hook(kind, error, _shortened(trace))

    return tell


def _shortened(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback with the lines of others than torch and pipekit, and its last one."""
    every = []
    while trace is not None:
        every.append(trace)
        trace = trace.tb_next
    kept = [
        each
        for each in every
        if each is every[-1] or not each.tb_frame.f_code.co_filename.startswith(_LIBRARIES)
    ]
    for one, next_one in pairwise(kept):
        one.tb_next = next_one
    return kept[0] if kept else None
