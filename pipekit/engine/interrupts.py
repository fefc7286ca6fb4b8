"""An interrupt, by Ctrl-C or a notebook's stop button, that lets a run end with whole updates."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """While it is entered, the first interrupt lets a run end where its updates are whole.

    The second one ends it at once, as the first one does outside of the main thread and where
    somebody else handles interrupts.

    Args:
        stop: lets the run end soon.

    Attributes:
        error: what is to be raised once the run has ended, or None.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop, self._mine = stop, False
        self.error: KeyboardInterrupt | None = None

    def __enter__(self) -> None:
        here = threading.current_thread() is threading.main_thread()
        self._mine = here and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._mine:
            signal.signal(signal.SIGINT, self._interrupted)

    def __exit__(self, *error: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.error = KeyboardInterrupt()
        self._stop()
        print(
            "pipekit: interrupted: the batches on their way are finished (a second interrupt ends "
            "the run at once, and its weights are lost)",
            file=sys.stderr,
            flush=True,
        )
