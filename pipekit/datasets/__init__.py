"""Real data that needs no network: with Python, with packages of pipekit's, or the user's own."""

from pipekit.datasets.dataset import Batch, Dataset
from pipekit.datasets.handwriting import ShiftedImages, handwriting
from pipekit.datasets.image_folder import image_folder
from pipekit.datasets.images import digits, mnist
from pipekit.datasets.installed import installed_text
from pipekit.datasets.masking import MaskedText, masked
from pipekit.datasets.snippets import python_snippets
from pipekit.datasets.text import python_source, text_file

__all__ = [
    "Batch",
    "Dataset",
    "MaskedText",
    "ShiftedImages",
    "digits",
    "handwriting",
    "image_folder",
    "installed_text",
    "masked",
    "mnist",
    "python_snippets",
    "python_source",
    "text_file",
]
