"""The user's lines: where warnings point to, and what notebooks show of an error within a call."""

import sys
import threading
import warnings
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_HIDDEN = {"pipekit", "torch", "contextlib", "threading"}


class PipekitWarning(UserWarning):
    """What pipekit warns of; it points to the line of the user's own code."""


def _is_hidden(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _HIDDEN


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the user's own code that calls pipekit, by which this one runs."""
    is_within = False
    while frame and not (is_within and not _is_hidden(frame)):
        is_within |= _is_hidden(frame)
        frame = frame.f_back
    return frame


def warn(text: str) -> None:
    """Warn, at the line of the user's own code that runs, or for which a worker's thread does."""
    main = sys._current_frames()[threading.main_thread().ident or 0]
    if frame := _users_frame(sys._getframe(1)) or _users_frame(main):
        known = frame.f_globals.setdefault("__warningregistry__", {})
        where = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
        warnings.warn_explicit(text, PipekitWarning, *where, known)


def hide_frames() -> None:
    """Have IPython and pytest leave out, of the error that is handled, frames of pipekit and torch.

    They do so by this name; Python itself prints all frames, in scripts.
    """
    error, seen = sys.exception(), list[BaseException]()
    while error and error not in seen:  # a user's causes may go round
        seen.append(error)
        for frame, _ in walk_tb(error.__traceback__):
            if _is_hidden(frame):
                frame.f_locals["__tracebackhide__"] = True
        error = error.__cause__ or error.__context__


def hiding_frames(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that its errors hide frames."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException:  # no name for it, which its own traceback would keep
            hide_frames()
            raise

    return called
