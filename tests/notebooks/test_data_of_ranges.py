"""A notebook's ranges allow no more data than there is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pipekit.datasets import mnist, python_source
from pipekit.ledger.batches.ranges import read


@pytest.fixture
def cell(repository: Path, name: str) -> str:
    notebook = nbformat.read(repository / f"notebooks/{name}.ipynb", as_version=4)
    return str(next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])).source)


@pytest.fixture
def most(cell: str) -> Callable[[str], int]:
    """A parameter's greatest value."""

    def of(name: str) -> int:
        allowed = read(cell)[name].range
        assert allowed is not None
        assert allowed.ends is not None
        return int(allowed.ends[1])

    return of


@pytest.mark.parametrize("name", ["pipedream_2bw/convergence"])
def test_there_is_as_much_text_as_is_allowed(cell: str, most: Callable[[str], int]) -> None:
    given: dict[str, Any] = {}
    exec(cell, given)
    rows, tests = most("rows"), most("test_rows")
    learnt = python_source(given["sequence"], rows + tests, tests).train_inputs
    assert len(learnt) == rows


@pytest.mark.parametrize("name", ["gpipe/timelines"])
def test_there_are_as_many_images_as_is_allowed(most: Callable[[str], int]) -> None:
    images = 256 * most("steps")
    assert len(mnist(rows=images + 250, test_rows=250).train_inputs) == images
