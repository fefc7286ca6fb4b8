"""What can be done about stale weights: rules that a ``Pipeline`` takes as ``mitigation``.

By name, or as an object: ``Pipeline(..., mitigation="spectrain")``, ``"pipemare:anneal=500"``,
``staleness.PipeMare(anneal=500)``.  Each says in its docstring with which schedules it goes.  Two
methods are optimizers: :func:`nesterov` and :class:`BasisRotation`; others are schedules:
``schedules.paci``, and ``schedules.two_bw`` with ``flush_after``.
"""

from pipekit.staleness.basis_rotation import BasisRotation
from pipekit.staleness.by_name import MITIGATIONS, named
from pipekit.staleness.error_feedback import ErrorFeedback
from pipekit.staleness.gap_aware import GapAware
from pipekit.staleness.mitigation import Mitigation, Pass, Update, Weight
from pipekit.staleness.nesterov import nesterov
from pipekit.staleness.pipemare import PipeMare
from pipekit.staleness.pipeoptim import PipeOptim
from pipekit.staleness.prediction import Ahead, Prediction, expected_step
from pipekit.staleness.spectrain import SpecTrain

__all__ = [
    "MITIGATIONS",
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
