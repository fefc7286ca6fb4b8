"""Commands that pages show, beside what README's own are run for."""

import re
import shlex
from pathlib import Path

import nbformat

RESULTS = re.compile(r'^results_dir: str = "([^"]+)"', re.MULTILINE)


def test_papermills_recipes_write_inside_the_repository(repository: Path) -> None:
    """A notebook's folders are relative to where it runs: papermill has to be told where it lies."""
    pages = [*repository.glob("*.md"), *repository.glob("docs/*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    recipes = [shlex.split(line) for line in lines if re.match(r"\s*papermill ", line)]
    assert recipes
    for recipe in recipes:
        notebook = repository / recipe[1]
        runs_in = repository / recipe[recipe.index("--cwd") + 1]
        cells = nbformat.read(notebook, as_version=4).cells
        (results,) = RESULTS.findall("\n".join(cell.source for cell in cells))
        assert (runs_in / results).resolve().is_relative_to(repository / "results")
