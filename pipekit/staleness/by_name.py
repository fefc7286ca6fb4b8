"""Mitigations by name: ``spectrain``, ``pipemare:anneal=500``."""

import ast
from collections.abc import Callable

from pipekit.choices import require_choice
from pipekit.staleness.error_feedback import ErrorFeedback
from pipekit.staleness.gap_aware import GapAware
from pipekit.staleness.mitigation import Mitigation
from pipekit.staleness.pipemare import PipeMare
from pipekit.staleness.pipeoptim import PipeOptim
from pipekit.staleness.prediction import Ahead
from pipekit.staleness.spectrain import SpecTrain

MITIGATIONS: dict[str, Callable[..., Mitigation]] = {
    "spectrain": SpecTrain,
    "pipeoptim": PipeOptim,
    "pipemare": PipeMare,
    "gap-aware": GapAware,
    "error-feedback": ErrorFeedback,
    "ahead": Ahead,
}
"""Each with what it takes."""


def named(text: str) -> Mitigation:
    """Return the mitigation of a name, perhaps with arguments: ``name:key=value,key=value``.

    Raises:
        ValueError: there is no such name, or it does not take these arguments.
    """
    name, _, rest = text.partition(":")
    require_choice("mitigation", name, list(MITIGATIONS))
    try:
        pairs = [each.split("=", 1) for each in rest.split(",") if each]
        return MITIGATIONS[name](**{key: ast.literal_eval(value) for key, value in pairs})
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(
            f"mitigation {text!r}: {error}; write it as {name}:key=value,key=value, or build it, "
            f"e.g. pipekit.staleness.PipeMare(anneal=500)"
        ) from None
