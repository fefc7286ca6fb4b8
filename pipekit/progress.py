"""Progress bars of long work: printed, or told to who runs the notebook."""

import io
import os
from collections.abc import Iterable
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
    return tqdm(steps, leave=False, **options)


class _Relayed(tqdm):  # type: ignore[type-arg]
    """Keeps in a file how far it is; of bars within bars the outermost does."""

    def __init__(self, steps: Iterable[Any] | None, **options: Any) -> None:
        super().__init__(steps, file=io.StringIO(), leave=False, **options)

    def display(  # type: ignore[override]  # the stub says None, tqdm returns whether it showed
        self, msg: str | None = None, pos: int | None = None
    ) -> bool:
        if self.pos == 0:  # tqdm's own number of the line that a bar has
            count = f"{self.n}" if self.total is None else f"{self.n}/{self.total}"
            words = self.desc.removesuffix(": "), count, self.unit.strip()
            file = Path(os.environ[RELAY])
            part = file.with_suffix(".part")
            part.write_text("" if msg == "" else " ".join(filter(None, words)), encoding="utf-8")
            part.replace(file)
        return True
