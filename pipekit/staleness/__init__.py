"""What can be done about stale weights: rules that a ``Pipeline`` takes as ``mitigation``.

By name, or as an object: ``Updates(mitigation="spectrain")``, ``"pipemare:anneal=500"``,
``staleness.PipeMare(anneal=500)``.  Each says in its docstring with which schedules it goes.  Two
methods are optimizers: :func:`nesterov` and :class:`BasisRotation`; others are schedules:
``schedules.paci``, and ``schedules.two_bw`` with ``flush_after``.

What the equations rest on: the texts of these papers were not at hand when they were written down.
SpecTrain's, PipeMare's and PipeOptim's are well known, but the numbers of their sections are from
memory.  Gap-Aware's elementwise form is FTPipe's code's, error feedback that of a public
implementation, basis rotation a detailed summary's; PACI's bound and rule are from its authors'
page and a summary, Nesterov's settings from its authors' scripts.  XPipe (Guan et al. 2019) is here
for whole minibatches alone: see :class:`SpecTrain`.
"""

from typing import TYPE_CHECKING, Any

from pipekit.extras import imported
from pipekit.staleness.mitigation import Mitigation, Pass, Update, Weight, named

if TYPE_CHECKING:
    from pipekit.staleness.basis_rotation import BasisRotation
    from pipekit.staleness.prediction import (
        Ahead,
        PipeMare,
        PipeOptim,
        Prediction,
        SpecTrain,
        expected_step,
    )
    from pipekit.staleness.stale_gradients import ErrorFeedback, GapAware, nesterov

__all__ = [
    "Ahead",
    "BasisRotation",
    "ErrorFeedback",
    "GapAware",
    "Mitigation",
    "Pass",
    "PipeMare",
    "PipeOptim",
    "Prediction",
    "SpecTrain",
    "Update",
    "Weight",
    "expected_step",
    "named",
    "nesterov",
]


def __getattr__(name: str) -> Any:
    """Import a rule when it is first used: simulations know their names, and need no torch."""
    for file in ("prediction", "stale_gradients", "basis_rotation"):
        if name in __all__ and hasattr(module := imported(f"{__name__}.{file}"), name):
            return getattr(module, name)
    raise AttributeError(f"module 'pipekit.staleness' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names: notebooks complete those, too, that nobody has used yet."""
    return __all__
