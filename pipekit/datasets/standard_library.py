"""The source of Python's own standard library: real text that every machine has."""

import functools
import platform
import sys
import sysconfig
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

_TABLES = frozenset({"encodings", "pydoc_data"})
"""Generated tables rather than programs."""
_PARTIAL = frozenset({"distutils", "idlelib", "lib2to3", "tkinter", "turtledemo"})
"""Modules that some releases or distributions leave out."""
_TESTS = frozenset({"test", "tests"})
_EACH_FIFTH = 5


class SourceFile(NamedTuple):
    """A module's text, and the package that it belongs to ("" for a module of its own)."""

    path: Path
    package: str
    text: bytes


class Library(NamedTuple):
    """The files to learn from, and those to test on."""

    train: tuple[SourceFile, ...]
    test: tuple[SourceFile, ...]


RELEASE = f"the standard library of Python {platform.python_version()}"
"""Texts differ from release to release, so every record of results names it."""


@functools.cache  # reads eight megabytes
def library() -> Library:
    """Return the library in two parts, a fifth of each folder's files for testing."""
    train: list[SourceFile] = []
    test: list[SourceFile] = []
    root = Path(sysconfig.get_path("stdlib"))
    for _, folder in groupby(sorted(_files(root), key=_folder_first), key=lambda path: path.parent):
        for number, path in enumerate(folder):
            parts = path.relative_to(root).parts
            file = SourceFile(path, parts[0] if len(parts) > 1 else "", path.read_bytes())
            (test if number % _EACH_FIFTH == 1 else train).append(file)
    return Library(tuple(train), tuple(test))


def _files(root: Path) -> list[Path]:
    # Only the documented modules: distributions add files of their own to this folder.
    skipped = _TABLES | _PARTIAL | _TESTS
    modules = sys.stdlib_module_names - skipped
    return [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0].removesuffix(".py") in modules
        and not _TESTS.intersection(path.parts[len(root.parts) :])
    ]


def _folder_first(path: Path) -> tuple[Path, str]:
    return path.parent, path.name
