"""The user's lines: where warnings point to, and what notebooks show of an error within a call."""

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_HIDDEN = {"pipekit", "torch", "contextlib"}
_CALLED_FROM: ContextVar[tuple[str, int] | None] = ContextVar("the call's line", default=None)


class PipekitWarning(UserWarning):
    """What pipekit warns of; it points to the line of the user's own code."""


def _is_hidden(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _HIDDEN


def _users_line() -> tuple[FrameType | None, int]:
    """Return the frame of the user's own code that runs, and its distance from the caller."""
    frame: FrameType | None = sys._getframe(2)
    level = 2
    while frame and _is_hidden(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


def calls_from_here() -> None:
    """Let what other threads warn of in the context of this call point to its line."""
    frame, _ = _users_line()
    if frame:
        _CALLED_FROM.set((frame.f_code.co_filename, frame.f_lineno))


def warn(text: str) -> None:
    """Warn, at the line of the user's own code that runs."""
    frame, level = _users_line()
    called_from = _CALLED_FROM.get()
    if called_from and frame and frame.f_globals.get("__name__") == "threading":
        warnings.warn_explicit(text, PipekitWarning, *called_from)
    else:
        warnings.warn(text, PipekitWarning, stacklevel=level)


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
