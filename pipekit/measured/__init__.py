"""Other people's runs: recorded traces, read, named and explained."""

from pipekit.measured.explanation import Explanation, compared, explain
from pipekit.measured.formats.kineto import label_actions
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
