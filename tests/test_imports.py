"""Imports go one way: no circle between files, nor between packages."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

TOP = "pipekit"


def modules(repository: Path) -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    files = sorted((repository / TOP).rglob("*.py"))
    return {name(file.relative_to(repository)): file for file in files}


def name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


@cache
def graph(repository: Path) -> "nx.DiGraph[str]":
    """Return which file imports which.

    ``pipekit/__init__.py`` is left out: it names all of the public API and imports it when asked.
    """
    known = modules(repository)
    edges = nx.DiGraph()
    for module, file in known.items():
        edges.add_node(module)
        if module != TOP:
            edges.add_edges_from((module, other) for other in imported(file, known) if other != TOP)
    return edges


def circles(edges: "nx.DiGraph[str]") -> list[list[str]]:
    return [sorted(found) for found in nx.strongly_connected_components(edges) if len(found) > 1]


def package(module: str, depth: int) -> str:
    """Return the package that a module is in; a module above that depth stands for itself."""
    return ".".join(module.split(".")[:depth])


def test_no_file_imports_itself_by_way_of_others(repository: Path) -> None:
    assert circles(graph(repository)) == []


@pytest.mark.parametrize("depth", [2, 3])
def test_no_package_imports_itself_by_way_of_others(repository: Path, depth: int) -> None:
    between = nx.DiGraph()
    for importer, other in graph(repository).edges:
        ends = package(importer, depth), package(other, depth)
        # A package's own __init__ gathers what its parts export.
        if ends[0] != ends[1] and not ends[0].startswith(ends[1]) and ends[0] != importer:
            between.add_edge(*ends)
    assert circles(between) == []


def test_the_walk_finds_a_circle(tmp_path: Path) -> None:
    (tmp_path / TOP).mkdir()
    for own, other in ("a", "b"), ("b", "c"), ("c", "a"):
        (tmp_path / TOP / f"{own}.py").write_text(
            f"def late():\n    from pipekit.{other} import x\n"
        )
    assert circles(graph(tmp_path)) == [["pipekit.a", "pipekit.b", "pipekit.c"]]
