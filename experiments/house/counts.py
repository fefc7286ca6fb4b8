"""Count the house: lines, folders, long functions, names that stand twice, circles of imports.

    python -m experiments.house.counts              # of this checkout
    python -m experiments.house.counts ../other     # of another one

Counted is what git tracks.  A line of code is neither blank, comment, docstring nor part of an
import; lines of a notebook are those of its code cells.
"""

import ast
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tests.test_imports import circles, graph

ROOT = Path(__file__).parents[2]
REPRODUCTION = re.compile(r"pipekit/ledger/|notebooks/|experiments/([^/]+/|prediction\.py)")
TOOLKIT = re.compile(r"/(benchmarks|bits|gpu|house|published|explore|your_model)[/.]")
"""Of experiments/ and notebooks/, what is not the four papers' reproduction and its ledger.

The predictions of other people's trainings, published/, have a limit of their own.
"""
FILES_IN_A_FOLDER, LINES_OF_A_FUNCTION = 16, 80

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file's Python: itself, or a notebook's code cells."""

    path: Path
    text: str

    @property
    def is_reproduction(self) -> bool:
        """Whether it belongs to the papers or the ledger, wherever they stand."""
        path = self.path.as_posix()
        return bool(REPRODUCTION.match(path)) and not TOOLKIT.search(path)


def sources(checkout: Path) -> Iterator[Source]:
    """Yield all Python that git tracks in a checkout."""
    command = ["git", "-C", str(checkout), "ls-files", "-z", "*.py", "*.ipynb"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (file := checkout / name).exists():
            text = file.read_text()
            if file.suffix == ".ipynb":
                cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
                text = "\n".join("".join(cell["source"]) for cell in cells)
            yield Source(Path(name), text)


def code_lines(text: str) -> int:
    """Return how many lines are neither blank, comment, docstring nor part of an import."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            left_out.update(span(node.body[0]))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(span(node))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in left_out
        for number, line in enumerate(text.splitlines(), 1)
    )


def span(first: ast.stmt, last: ast.stmt | None = None) -> range:
    """Return the numbers of the lines from one statement to the end of another, or of itself."""
    return range(first.lineno, ((last or first).end_lineno or first.lineno) + 1)


def long_functions(files: Iterable[Source]) -> Iterator[tuple[str, int]]:
    """Yield the functions with long bodies, docstrings left out."""
    for file in files:
        for node in ast.walk(ast.parse(file.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[ast.get_docstring(node) is not None :]
                if body and (lines := len(span(body[0], body[-1]))) > LINES_OF_A_FUNCTION:
                    yield f"{file.path}: {node.name}", lines


def counted(checkout: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yield what is counted: its name, the number, and what there is to show."""
    by_top = defaultdict[str, list[Source]](list)
    for file in sources(checkout):
        by_top[file.path.parts[0]].append(file)
    tests, notebooks, package = (by_top.pop(top, []) for top in ("tests", "notebooks", "pipekit"))
    scripts = [file for files in by_top.values() for file in files]
    product = package + scripts
    papers = [file for file in product + notebooks if file.is_reproduction]
    for name, files in {
        "lines outside tests, with notebooks' cells": product + notebooks,
        "    of Python files": product,
        "    of notebooks' cells": notebooks,
        "    of pipekit/": package,
        "    of papers and ledger, with their notebooks": papers,
        "    in scripts of experiments/ and docs/": scripts,
        "lines of tests": tests,
    }.items():
        yield name, sum(len(file.text.splitlines()) for file in files), []
    yield "lines of code outside tests", sum(code_lines(file.text) for file in product), []
    nodes = [(file.path, node) for file in package for node in ast.walk(ast.parse(file.text))]
    classes = {(node.name, path) for path, node in nodes if isinstance(node, ast.ClassDef)}
    twice = [name for name, n in Counter(name for name, _ in classes).items() if n > 1]
    yield "class names in two files or more", len(twice), sorted(twice)
    folders = Counter(file.path.parent for file in product + tests)
    full = [f"{each}: {n}" for each, n in folders.items() if n > FILES_IN_A_FOLDER]
    yield f"folders with more than {FILES_IN_A_FOLDER} Python files", len(full), full
    long = [f"{name}, {length}" for name, length in long_functions(product + tests)]
    yield f"function bodies over {LINES_OF_A_FUNCTION} lines", len(long), long
    found = [", ".join(each) for each in circles(graph(checkout))]
    yield "circles of imports", len(found), found


def main(
    checkout: Annotated[Path, typer.Argument(help="Whose files are counted.")] = ROOT,
    show: Annotated[bool, typer.Option("--list", help="Also list what is counted.")] = False,
) -> None:
    """Count the house."""
    for name, number, items in counted(checkout):
        print(f"{number:7,}  {name}")
        for item in items if show else ():
            print(f"           {item}")


if __name__ == "__main__":
    typer.run(main)
