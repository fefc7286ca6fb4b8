"""Processes under torchrun: whether they read the same data, and what they tell of a failure.

Each reads all batches itself; the first stage takes a batch's input in one process, the last stage
its target in another.  So processes compare checksums through torchrun's store: of a batch's rows,
and of all that the loss gets beside the model's input, which may be augmented in each its own way.
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.utils import _pytree as pytree

from pipekit.devices import is_accelerator
from pipekit.engine.assignment import WorkerAssignment
from pipekit.engine.batches import Batch
from pipekit.engine.config import RunConfig
from pipekit.engine.feed import End
from pipekit.engine.transport import Aborted
from pipekit.layers.module_state import trained
from pipekit.trees import leaves

EVERY = 8  # batches after which checksums are compared; those of the first batch are at once
LOOKED_AT = 8  # elements of a row, at its beginning and in its middle, that a checksum is made of
GRACE_S = 3.0  # for the cause to arrive after its consequences
_AT, _ENDED, _FAILED = "at", "ended", "failed"
_LIBRARIES = str(Path(__file__).parents[2]), str(Path(torch.__file__).parent)
_REMEDY = (
    "under torchrun every process reads all data itself, so let all of them read the same batches "
    "in the same order: seed alike in every process what shuffles or draws them"
)


class Noticeboard:
    """The notes of all workers of a run, as one sees them, which has read ``count`` batches."""

    def __init__(self, run: int, worker: int, workers: int) -> None:
        self._store = PrefixStore(f"pipekit run {run}", _get_default_store())
        self._worker, self._workers = worker, range(workers)
        self._stands = self._ended = False
        self.count = 0
        self.latest: dict[int, int] = {}  # checksums by batch, as far as they may not be compared

    def compared(
        self,
        batches: Iterable[Batch | End],
        reading: Callable[[], AbstractContextManager[object]],
    ) -> Iterator[Batch | End]:
        """Yield this process's batches, or raise ValueError if another one reads other batches.

        ``reading`` is entered while one is read.
        """
        batches = iter(batches)
        while True:
            with reading():
                batch = next(batches, None)
            if batch is None:
                return
            if isinstance(batch, End):
                self._ended = True
                self._put(_ENDED, str(self.count))
            else:
                self.latest[self.count] = checksum(batch)
                self.latest.pop(self.count - 2 * EVERY, None)
                self.count += 1
                if self.count % EVERY == 1:
                    self._compare()
            yield batch

    def _compare(self) -> None:
        """Compare the last few checksums with those of whoever came here first."""
        with suppress(RuntimeError):  # whoever has the store is gone
            mine = json.dumps([self._worker, [*self.latest.items()]])
            first = self._store.compare_set(f"batch {self.count}", "", mine)
            self._store.delete_key(f"batch {self.count - 4 * EVERY}")  # all are beyond it
            worker, sums = json.loads(first)
            self.require_same(worker, dict(sums))

    def require_same(self, worker: int, sums: Mapping[int, int]) -> None:
        """Raise ValueError unless another worker's checksums are those of the same batches here."""
        for batch in sorted(self.latest.keys() & sums.keys()):
            if self.latest[batch] != sums[batch]:
                earlier, later = sorted((self._worker, worker))
                raise ValueError(
                    f"batch {batch} of worker {later} differs from that of worker {earlier}: "
                    f"{_REMEDY}"
                )

    def failed(self, error: BaseException) -> None:
        self._put(_FAILED, in_one_line(error))

    def cause(self) -> str:
        """Return what ended the run in another process, once it is known."""
        end = time.monotonic() + GRACE_S
        while not (found := self._all(_FAILED)) and time.monotonic() < end:
            time.sleep(0.05)
        for worker, said in found.items():
            return f"worker {worker} has failed: {said}"
        return "another worker's process has ended without a word; torchrun says below how"

    def look(self, lines: Sequence[str] | None) -> None:
        """Note what this worker is at while it gets no further (None: it does).

        Raises ValueError if another's data have ended before a batch that was read here.
        """
        if (lines is not None) is not self._stands:
            self._stands = lines is not None
            self._put(_AT, "".join(lines or ()))
        for worker, ended in self._all(_ENDED).items() if self._stands else ():
            if int(ended) < self.count or (self._ended and int(ended) > self.count):
                mine = str(self.count) if self._ended else f"{self.count} or more"
                raise ValueError(unequal({worker: ended, self._worker: mine}))

    def others(self) -> list[str]:
        """Return what others are at that get no further, either."""
        return [line for worker, line in self._all(_AT).items() if line and worker != self._worker]

    def _put(self, kind: str, text: str) -> None:
        with suppress(RuntimeError):
            self._store.set(f"{kind} {self._worker}", text)

    def _all(self, kind: str) -> dict[int, str]:
        found = {}
        with suppress(RuntimeError):
            for worker in self._workers:
                if self._store.check([key := f"{kind} {worker}"]):
                    found[worker] = self._store.get(key).decode()
        return found


def unequal(counts: dict[int, Any]) -> str:
    """Say how many batches workers have, that should have equally many."""
    each = " and ".join(f"worker {worker} has {count}" for worker, count in counts.items())
    return f"the numbers of batches differ: {each}; {_REMEDY}"


def checksum(batch: Batch) -> int:
    """Return a checksum of a batch's rows; tensors on accelerators count by their shapes alone."""
    inputs = {id(tensor) for tensor in leaves(batch.input)}
    target = batch.target
    entries = [target] if isinstance(target, Tensor) else pytree.tree_leaves(target)
    others = [entry for entry in entries if id(entry) not in inputs]
    return _checksum(others or entries, zlib.crc32(repr((batch.rows, batch.row_shapes)).encode()))


def shared_weights(own: WorkerAssignment, config: RunConfig) -> dict[tuple[str, int], int]:
    """Return checksums, before training, of weights that others have, too: of stages, and tied."""
    found = {}
    for index, stage in own.stages.items() if not config.first_microbatch else ():
        if len(config.table.stage_workers[index]) > 1:
            found["stage", index] = _checksum(stage.known.module.parameters())
        weights = trained(stage.known.module)
        for number, (stages, places) in enumerate(config.ties):
            if index in stages:
                found["tie", number] = _checksum(weights[n] for n in places[stages.index(index)])
    return found


def require_same_weights(everybodys: Iterable[Mapping[tuple[str, int], int]]) -> None:
    """Raise ValueError unless copies of weights in several processes are the same."""
    known: dict[tuple[str, int], tuple[int, int]] = {}
    for worker, weights in enumerate(everybodys):
        for shared, now in weights.items():
            first, before = known.setdefault(shared, (worker, now))
            if now != before:
                raise ValueError(
                    f"worker {worker} begins with other weights than worker {first}, which has a "
                    f"copy of them: under torchrun let every process make or load the same model, "
                    f"after the same torch.manual_seed(0) say"
                )


def _checksum(entries: Iterable[Any], total: int = 0) -> int:
    for entry in entries:
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
            part = Path(f"{path}.part")  # torchrun may end this process meanwhile
            part.write_text(json.dumps(said))
            part.replace(path)


def telling(hook: Callable[..., object]) -> Callable[..., object]:
    """Return a hook for errors that nobody catches.

    It prints a line for what another process has caused, else the traceback without lines of torch
    and pipekit but for its last one.
    """

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Aborted):
            tell_torchrun(str(error))
            print(f"pipekit: {error}", file=sys.stderr)
            return
        tell_torchrun(in_one_line(error))
        every = []
        while trace is not None:
            every.append(trace)
            trace = trace.tb_next
        for each in reversed(every):
            if trace is None or not each.tb_frame.f_code.co_filename.startswith(_LIBRARIES):
                each.tb_next, trace = trace, each
        hook(kind, error, trace)

    return tell
