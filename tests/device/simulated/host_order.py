"""What one thread of the host tells another, for the race detector.

A thread that has waited for a stream, and then hands over by a queue or a lock, has waited for the
next thread, too.  The interpreter does not show its locks' order, so the process in which the
simulated accelerator lives gets locks of its own, before anything that uses them is imported.
A flag that threads poll without a lock is not seen.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Detector(Protocol):
    """The part of the built module that threads need."""

    Token: Callable[[], Any]
    publish: Callable[[Any], None]
    observe: Callable[[Any], None]


def install(detector: Detector) -> None:
    """Replace threads' start and join, locks, and the simple queue, in this process for good."""
    plain_lock = threading.Lock

    class Lock:
        """A lock that also hands over what was waited for."""

        def __init__(self) -> None:
            self._lock, self._token = plain_lock(), detector.Token()
            self.locked = self._lock.locked

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            acquired = self._lock.acquire(blocking, timeout)
            if acquired:
                detector.observe(self._token)
            return acquired

        def release(self) -> None:
            detector.publish(self._token)
            self._lock.release()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

        def _at_fork_reinit(self) -> None:
            self._lock._at_fork_reinit()  # type: ignore[attr-defined]

    class RLock(threading._RLock):  # type: ignore[misc]  # the one in Python, over a lock of ours
        def __init__(self) -> None:
            super().__init__()
            self._block: Any = Lock()

    start, join = threading.Thread.start, threading.Thread.join

    def started(thread: Any) -> None:
        token, body = detector.Token(), thread.run
        detector.publish(token)

        def run() -> None:
            detector.observe(token)
            try:
                body()
            finally:
                detector.publish(token)

        thread.run, thread._token = run, token
        start(thread)

    def joined(thread: Any, timeout: float | None = None) -> None:
        join(thread, timeout)
        if not thread.is_alive():
            detector.observe(thread._token)

    for owner, name, ours in (
        (threading.Thread, "start", started),
        (threading.Thread, "join", joined),
        (threading, "Lock", Lock),
        (threading, "RLock", RLock),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
    ):
        setattr(owner, name, ours)
