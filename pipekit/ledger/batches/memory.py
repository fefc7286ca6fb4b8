"""How much memory a notebook takes: its kernel and all that it starts."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

_LOOK_S = 3.0  # a look costs 10 ms a process


@contextmanager
def taken_memory(roots: Callable[[], Iterable[int]]) -> Iterator[list[int]]:
    """Yield the bytes that the ``roots`` and all processes below them take together, every 3 s.

    A page that several of them share counts once, where the system (Linux) tells.
    """
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            seen.append(sum(map(_with_children, roots())))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield seen
    finally:
        ended.set()
        watch.join()


def _with_children(pid: int) -> int:
    total = 0
    with suppress(psutil.Error):  # it has ended
        root = psutil.Process(pid)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                known = each.memory_full_info()
                total += getattr(known, "pss", known.uss)
    return total
