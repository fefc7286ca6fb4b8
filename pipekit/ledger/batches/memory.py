"""How much memory a notebook takes: its kernel and all that it starts, as Linux counts it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipekit.host.parent import started_by

_LOOK_S = 3.0  # a look costs 10 ms a process


@contextmanager
def taken_memory(roots: Callable[[], Iterable[int]]) -> Iterator[list[int]]:
    """Yield the bytes that the ``roots`` and all processes below them take together, every 3 s.

    A page that several of them share counts once.
    """
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            seen.append(sum(_share(pid) for root in roots() for pid in (root, *started_by(root))))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield seen
    finally:
        ended.set()
        watch.join()


def _share(pid: int) -> int:
    """Return a process's bytes, of a page that n have 1/n; 0 of one that has ended."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(told.partition("\nPss:")[2].split()[0]) if told else 0
