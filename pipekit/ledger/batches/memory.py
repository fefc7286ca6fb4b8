"""How much memory a notebook takes: its kernel and all that it starts, as Linux counts it."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipekit.host.parent import started_by

_LOOK_S = 1.0
_GROWN = 1.01  # times the most pages so far: from there on the costly count is made


@contextmanager
def peak_memory(roots: Callable[[], Iterable[int]]) -> Iterator[list[int]]:
    """Yield a list whose last number, if any, is the most bytes that processes took together.

    They are the ``roots`` and all below them, looked at every second; a page that several of them
    share counts once.
    """
    peaks: list[int] = []
    ended = threading.Event()

    def look() -> None:
        most = 0
        while not ended.wait(_LOOK_S):
            pids = [pid for root in roots() for pid in (root, *started_by(root))]
            pages = sum(_found(r"\d+ (\d+)", pid, "statm") for pid in pids)
            if pages > _GROWN * most:
                most = pages
                shares = sum(_found(r"Pss: +(\d+)", pid, "smaps_rollup") for pid in pids)
                peaks.append(max([1024 * shares, *peaks[-1:]]))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield peaks
    finally:
        ended.set()
        watch.join()


def _found(pattern: str, pid: int, file: str) -> int:
    """Return a number that Linux tells of a process; 0 of one that has ended."""
    try:
        told = re.search(pattern, Path(f"/proc/{pid}/{file}").read_text())
    except OSError:
        return 0
    return int(told[1]) if told else 0
