"""Other people's runs: recorded traces, read, named and explained."""

from typing import Any

from pipekit.measured.compare import compared
from pipekit.measured.explanation import Explanation, explain
from pipekit.measured.read import read_trace
from pipekit.measured.recognition import Recognition, recognise

__all__ = [
    "Explanation",
    "Recognition",
    "compared",
    "explain",
    "label_actions",
    "read_trace",
    "recognise",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used."""
    if name != "label_actions":
        raise AttributeError(f"module 'pipekit.measured' has no attribute {name!r}")
    from pipekit.measured.torch_labels import label_actions

    return label_actions
