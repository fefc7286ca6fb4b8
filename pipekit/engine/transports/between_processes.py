"""Processes under torchrun: whether they read the same data, and what they tell of a failure.

Each reads all batches itself.  The first stage takes a batch's input in one process, the last stage
its target in another.  So whoever sends the first activation of a batch over a link sends checksums
before it, at the first batch and then every few, of each batch so far: of its rows, and of all that
the loss gets beside the model's input, which in each process may be augmented otherwise.

Something that goes wrong is told to one another through torchrun's store, to torchrun through its
file of errors, and to the user in few lines.  Nothing is written while all is well.
"""

import json
import os
import sys
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.utils import _pytree as pytree

from pipekit.devices import is_accelerator
from pipekit.engine.batches import Batch
from pipekit.engine.feed import End
from pipekit.engine.transport import Aborted
from pipekit.schedules import Message, Payload
from pipekit.trees import leaves

EVERY = 8
"""Batches after which checksums are compared; those of the first batch are at once."""

LOOKED_AT = 8
"""Elements of each row of which a checksum is made, at its beginning and in its middle."""

_REMEDY = (
    "under torchrun every process reads all data itself, so let all of them read the same batches "
    "in the same order: seed alike in every process what shuffles or draws them"
)


class OwnData:
    """The batches of this process, as they are read.

    ``reading`` is entered while a batch is read; ``end`` is called with the number of batches once
    they have ended before the run's table.
    """

    def __init__(
        self,
        batches: Iterable[Batch | End],
        reading: Callable[[], AbstractContextManager[object]],
        end: Callable[[int], object],
    ) -> None:
        self._batches, self._reading, self._end = batches, reading, end
        self._stops, self._sums = array("q"), array("q")
        # By link: the microbatch after the last batch seen there, and the last batch compared.
        self._seen: dict[tuple[bool, int], int] = {}
        self._compared: dict[tuple[bool, int], int] = {}

    @property
    def count(self) -> int:
        """Batches that were read."""
        return len(self._stops)

    def __iter__(self) -> Iterator[Batch | End]:
        batches = iter(self._batches)
        while True:
            with self._reading():
                batch = next(batches, None)
            if batch is None:
                return
            if isinstance(batch, End):
                self._end(self.count)
            else:
                self._stops.append((self._stops[-1] if self._stops else 0) + batch.parts)
                self._sums.append(checksum(batch))
            yield batch

    def begins_batch(self, message: Message, peer: int, sent: bool) -> bool:
        """Return whether a message to (``sent``) or from a peer begins a batch over this link."""
        if message.microbatch < self._seen.get((sent, peer), 0):
            return False
        return message.payload is Payload.ACTIVATION

    def checksums_before(self, message: Message, peer: int, sent: bool) -> Tensor | None:
        """Return what goes before a message whose microbatch was read: the number of a batch, and
        the checksums from it on; None: they wait for a later batch.
        """
        link, batch = (sent, peer), bisect_right(self._stops, message.microbatch)
        self._seen[link] = self._stops[batch]
        last = self._compared.get(link)
        if last is not None and batch < last + EVERY:
            return None
        self._compared[link] = batch
        first = 0 if last is None else last + 1
        return torch.tensor([first, *self._sums[first : batch + 1]])

    @property
    def latest(self) -> Tensor:
        """The checksums that may not have been compared, as of :meth:`checksums_before`."""
        first = max(0, self.count - 2 * EVERY)
        return torch.tensor([first, *self._sums[first:]])

    def require_same_ends(self, worker: int, latest: Sequence[Tensor]) -> None:
        """Raise ValueError if a worker beside this one has read other rows in the end."""
        for sent, peer in self._compared:
            later, earlier = (peer, worker) if sent else (worker, peer)
            self.require_same(latest[later], latest[earlier], later, earlier)

    @staticmethod
    def require_same(mine: Tensor, theirs: Tensor, worker: int, peer: int) -> None:
        """Raise ValueError unless two workers have the same checksums."""
        common = min(len(mine), len(theirs))  # who needs no more has not read the last batches
        mine, theirs = mine[:common], theirs[:common]
        if mine[0] == theirs[0] and not torch.equal(mine, theirs):
            batch = int(mine[0]) + (mine != theirs).tolist().index(True) - 1
            raise ValueError(
                f"batch {batch} of worker {worker} differs from that of worker {peer}: {_REMEDY}"
            )


def require_as_many(counts: list[int]) -> None:
    """Raise ValueError unless all workers have equally many batches."""
    for worker, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(unequal({0: counts[0], worker: count}))


def unequal(counts: dict[int, Any]) -> str:
    """Say how many batches workers have, that should have equally many."""
    each = " and ".join(f"worker {worker} has {count}" for worker, count in counts.items())
    return f"the numbers of batches differ: {each}; {_REMEDY}"


def checksum(batch: Batch) -> int:
    """Return a checksum of a batch's rows; tensors on accelerators count by their shapes alone."""
    inputs = {id(tensor) for tensor in leaves(batch.input)}
    target = batch.whole_target
    entries = [target] if isinstance(target, Tensor) else pytree.tree_leaves(target)
    others = [entry for entry in entries if id(entry) not in inputs]
    total = zlib.crc32(repr((batch.rows, batch.row_shapes)).encode())
    for entry in others or entries:
        total = zlib.crc32(_bytes(entry), total)
    return total


def _bytes(entry: Any) -> Any:
    """Return what a checksum is made of; objects that only their program can compare give none."""
    if isinstance(entry, Tensor):
        if is_accelerator(entry.device) or entry.is_nested or entry.layout is not torch.strided:
            return str(entry.dtype).encode()
        try:  # each call of torch takes 20 us where the layers' passes have filled the caches
            entry = entry.numpy(force=True)
        except TypeError:  # a type that numpy lacks, say bfloat16
            entry = entry.float().numpy(force=True)
    if isinstance(entry, np.ndarray) and entry.dtype != object:
        rows = entry.reshape(len(entry) if entry.ndim and len(entry) else 1, -1)
        middle = rows.shape[1] // 2
        if middle > LOOKED_AT:
            return rows[:, :LOOKED_AT].tobytes() + rows[:, middle : middle + LOOKED_AT].tobytes()
        return rows.tobytes()
    return repr(entry).encode() if isinstance(entry, (str, bytes, int, float)) else b""


GRACE_S = 3.0  # for the cause to arrive after its consequences
_LIBRARIES = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)

_AT, _ENDED, _FAILED = "at", "ended", "failed"


class Noticeboard:
    """The notes of all workers of a run, as one of them sees them."""

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
