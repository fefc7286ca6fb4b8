from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

PARAMETERS = 'scale = "quick"\nresults_dir = "."\nsteps: int | None = None  # optimizer steps\n'


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a notebook: a parameters cell, then the cells given."""

    def make(name: str, *cells: str, parameters: str = PARAMETERS) -> Path:
        first = new_code_cell(parameters, metadata={"tags": ["parameters"]})
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=[first, *map(new_code_cell, cells)]), path)
        return path

    return make
