"""Other people's runs: recorded traces, read, named and explained."""

from pipekit.measured.explanation import Explanation as Explanation
from pipekit.measured.explanation import compared as compared
from pipekit.measured.explanation import explain as explain
from pipekit.measured.formats.kineto import label_actions as label_actions
from pipekit.measured.read import read_trace as read_trace
from pipekit.measured.recognition import Recognition as Recognition
from pipekit.measured.recognition import recognise as recognise
