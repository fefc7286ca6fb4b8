"""Progress bars of long work: on a terminal, in a notebook, or told to who runs the notebook."""

import io
import os
import sys
from abc import abstractmethod
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from tqdm.std import tqdm

RELAY = "PIPEKIT_PROGRESS"
"""The environment variable in which the runner of notebooks that nobody looks at names a file.

A bar keeps there, in words, how far it is.
"""
PATIENCE_S = 1.0


def progress_bar(steps: Iterable[Any] | None = None, **options: Any) -> "tqdm[Any]":
    """Return tqdm's bar, with its options, which is gone when it is over."""
    if RELAY in os.environ:
        return _Relayed(steps, **options)
    if _in_notebook():
        return _InNotebook(steps, **options)
    return tqdm(steps, leave=False, **options)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # whoever has not imported it is in none
    shell = ipython and ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Elsewhere(tqdm):  # type: ignore[type-arg]
    """Is written to no stream: what is to be seen of it goes to :meth:`tell`."""

    def __init__(self, steps: Iterable[Any] | None, **options: Any) -> None:
        super().__init__(steps, file=io.StringIO(), leave=False, **options)

    def display(  # type: ignore[override]  # the stub says None, tqdm returns whether it showed
        self, msg: str | None = None, pos: int | None = None
    ) -> bool:
        self.tell(is_over=msg == "")
        return True

    @abstractmethod
    def tell(self, is_over: bool) -> None:
        """Say how far it is, or that nothing is to be seen of it any more."""


class _Relayed(_Elsewhere):
    """Keeps in a file how far it is; of bars within bars the outermost does."""

    def tell(self, is_over: bool) -> None:
        if self.pos == 0:  # tqdm's own number of the line that a bar has
            count = f"{self.n}" if self.total is None else f"{self.n}/{self.total}"
            words = self.desc.removesuffix(": "), count, self.unit.strip()
            file = Path(os.environ[RELAY])
            part = file.with_suffix(".part")
            part.write_text("" if is_over else " ".join(filter(None, words)), encoding="utf-8")
            part.replace(file)


class _InNotebook(_Elsewhere):
    """Is one output of the cell, which is empty in the end: a saved notebook shows no widget."""

    _shown: Any = None  # IPython's handle of the output

    def tell(self, is_over: bool) -> None:
        from IPython.display import HTML, display  # here: IPython is there by now

        seen = HTML("" if is_over else f"<pre>{escape(str(self))}</pre>")
        if self._shown is None:
            self._shown = display(seen, display_id=True)
        else:
            self._shown.update(seen)
