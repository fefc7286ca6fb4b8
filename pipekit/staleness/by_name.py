"""Mitigations by name: ``spectrain``, ``pipemare:anneal=500``."""

import ast

from pipekit.names import MITIGATIONS
from pipekit.staleness.mitigation import Mitigation


def named(text: str) -> Mitigation:
    """Return the mitigation of a name, perhaps with arguments: ``name:key=value,key=value``.

    Raises:
        ValueError: there is no such name, or it does not take these arguments.
    """
    name, _, rest = text.partition(":")
    make = MITIGATIONS.load(name)
    try:
        pairs = [each.split("=", 1) for each in rest.split(",") if each]
        rule: Mitigation = make(**{key: ast.literal_eval(value) for key, value in pairs})
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(
            f"mitigation {text!r}: {error}; write it as {name}:key=value,key=value, or build it, "
            f"e.g. pipekit.staleness.PipeMare(anneal=500)"
        ) from None
    return rule
