"""Other people's runs: recorded traces, read, named and explained."""

from pipekit.measured.compare import compared
from pipekit.measured.explanation import Explanation, explain
from pipekit.measured.read import read_trace
from pipekit.measured.recognition import Recognition, recognise
from pipekit.measured.torch_labels import label_actions

__all__ = [
    "Explanation",
    "Recognition",
    "compared",
    "explain",
    "label_actions",
    "read_trace",
    "recognise",
]
