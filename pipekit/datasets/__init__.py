"""Real data that needs no network: with Python, with packages of pipekit's, or the user's own."""

from pipekit.datasets.dataset import Alteration, Batch, Dataset
from pipekit.datasets.images import digits, handwriting, mnist
from pipekit.datasets.text import installed_text, masked, python_source, text_file

__all__ = [
    "Alteration",
    "Batch",
    "Dataset",
    "digits",
    "handwriting",
    "installed_text",
    "masked",
    "mnist",
    "python_source",
    "text_file",
]
