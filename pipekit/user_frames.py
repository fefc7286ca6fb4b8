"""Tracebacks in notebooks: of an error within a call of pipekit they show the user's lines."""

import sys
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_HIDDEN = {"pipekit", "torch", "contextlib"}


def hide_frames() -> None:
    """Have IPython and pytest leave out, of the error that is handled, frames of pipekit and torch.

    They do so by this name; Python itself prints all frames, in scripts.
    """
    error = sys.exception()
    while error:
        for frame, _ in walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__", "").partition(".")[0] in _HIDDEN:
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
