"""Progress bars of long work: on a terminal, in a notebook, or told to who runs the notebook.

``pipekit run`` executes notebooks with nobody at their screen, where a bar would only fill the
saved notebook with its traces.  So it names a file in the environment, :data:`RELAY`, and a bar
keeps there, in words, how far it is; the runner shows that beside its own bar.
"""

import io
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import tqdm.auto
import tqdm.std

RELAY = "PIPEKIT_PROGRESS"
"""The environment variable that names the file."""


def progress_bar(
    steps: Iterable[Any] | None = None, *, widget: bool = True, **options: Any
) -> "tqdm.std.tqdm[Any]":
    """Return tqdm's bar, which counts the steps as they are iterated over, or by its ``update``.

    Args:
        steps: what to iterate over; None for a bar that is updated by hand.
        widget: whether a notebook shows a widget, which a saved notebook loses; else it is text.
        options: tqdm's own, say ``desc``, ``total`` or ``disable``.
    """
    if RELAY in os.environ:
        return _Relayed(steps, **options)
    kind: type[tqdm.std.tqdm[Any]] = tqdm.auto.tqdm if widget else tqdm.std.tqdm
    return kind(steps, leave=False, **options)


text_bar = partial(progress_bar, widget=False)
"""The same without a widget: what the papers' notebooks show."""


class _Relayed(tqdm.std.tqdm):  # type: ignore[type-arg]
    """Keeps in a file how far it is; of bars within bars the outermost does."""

    def __init__(self, steps: Iterable[Any] | None, **options: Any) -> None:
        self._file = Path(os.environ[RELAY])
        super().__init__(steps, file=io.StringIO(), leave=False, **options)

    def display(  # type: ignore[override]  # the stub says None, tqdm returns whether it showed
        self, msg: str | None = None, pos: int | None = None
    ) -> bool:
        if self.pos == 0:  # tqdm's own number of the line that a bar has
            count = f"{self.n}" if self.total is None else f"{self.n}/{self.total}"
            words = self.desc.removesuffix(": "), count, self.unit.strip()
            text = "" if msg == "" else " ".join(filter(None, words))  # "" once it is over
            part = self._file.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            part.replace(self._file)
        return True
