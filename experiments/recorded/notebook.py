"""A notebook that records lists of findings."""

from collections.abc import Iterable
from typing import Any

from experiments.recorded.findings import Finding
from experiments.study import notebook as study

_QUALIFIED = "repeats", "invalid", "shown_only", "causes", "contradiction", "known_error"
"""What a finding may say of its value, for :func:`pipekit.claims.record`."""


class Notebook(study.Notebook):
    """A notebook's folder of results; see :class:`experiments.study.notebook.Notebook`."""

    def record_all(
        self, findings: Iterable[Finding], figure: str | None = None, **more: object
    ) -> None:
        """Record findings; ``figure`` shows those that name none.  See :meth:`record`."""
        for found in findings:
            shown = found.figure or figure
            kept = {name: getattr(found, name) for name in _QUALIFIED}
            kept |= {"note": found.note, "figure": shown, **more}
            self._record(found.claim, found.value, found.label, kept)
        self._update_scoreboard()


def open_notebook(*, name: str, label: str, threads: int | None = None, **given: Any) -> Notebook:
    """Make a notebook's folder of results, ``given`` its parameters; see :func:`study.begin`."""
    return study.opened(Notebook, given, name, label, threads)
