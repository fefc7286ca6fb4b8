"""Real data that needs no network: with Python, with packages of pipekit's, or the user's own."""

from pipekit.datasets.dataset import Alteration as Alteration
from pipekit.datasets.dataset import Batch as Batch
from pipekit.datasets.dataset import Dataset as Dataset
from pipekit.datasets.images import digits as digits
from pipekit.datasets.images import handwriting as handwriting
from pipekit.datasets.images import mnist as mnist
from pipekit.datasets.text import installed_text as installed_text
from pipekit.datasets.text import masked as masked
from pipekit.datasets.text import python_source as python_source
from pipekit.datasets.text import text_file as text_file
