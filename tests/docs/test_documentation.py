"""Whatever is public says what it takes, gives and refuses."""

import ast
import dataclasses
import importlib
import inspect
import pydoc
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import Any

import pytest

MODULES = [
    "pipekit",
    *[
        "pipekit." + name
        for name in ("clusters", "datasets", "engine", "measured", "models", "planning")
    ],
    *["pipekit." + name for name in ("plots", "profiling", "schedules")],
    *["pipekit." + name for name in ("layers.batch_norm", "layers.skips", "ledger.claims")],
]
DESCRIBED_ELSEWHERE = re.compile(r"\A[^\n]*\b[Ss]ee :(?:func|meth):`(?:pipekit\.)?([\w.]+)`\.")


def exported(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of ``__all__``; without one, a package's, or a module's own."""
    home = importlib.import_module(module)
    listed = getattr(home, "__all__", ())
    origin = "pipekit." if hasattr(home, "__path__") else module  # of what a package gathers
    for name in [*(listed or vars(home))]:
        value = getattr(home, name)
        if name.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        if name in listed or value.__module__.startswith(origin):
            yield f"{module}.{name}", value


def public(module: str) -> Iterator[tuple[str, Any]]:
    """Yield a module's public functions, classes, methods and properties by their names."""
    for name, value in exported(module):
        yield name, value
        for inner, member in vars(value).items() if inspect.isclass(value) else ():
            function = _function(member)
            if not inner.startswith("_") and function is not None:
                yield f"{name}.{inner}", function


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def parameters(value: Any) -> list[str]:
    if inspect.isclass(value) and issubclass(value, Enum | BaseException):
        return []
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if inspect.isclass(value) and not {"__init__", "__new__"} & vars(value).keys():
        return []  # they are its base's
    names = inspect.signature(value).parameters
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def raised(value: Any) -> set[str]:
    """Return the exceptions that a function raises itself, or a class when it is made."""
    if inspect.isclass(value):
        made = vars(value).get("__post_init__" if dataclasses.is_dataclass(value) else "__init__")
        return raised(made) if inspect.isfunction(made) else set()
    found = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(value))))
    calls = [node.exc for node in found if isinstance(node, ast.Raise)]
    names = {c.func.id for c in calls if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
    return names - {"AssertionError"}


def lacking(name: str, value: Any) -> Iterator[str]:
    """Yield what a docstring does not say."""
    text = inspect.getdoc(value)
    if not text:
        yield f"{name} has no docstring"
    elif elsewhere := DESCRIBED_ELSEWHERE.search(text):
        if pydoc.locate(f"pipekit.{elsewhere[1]}") is None:
            yield f"{name}: {elsewhere[0]}"
    else:
        taken = parameters(value)
        unsaid = [p for p in taken if not re.search(rf"(?m)^ +(.*, )?{p}(, .*)?:|``{p}\b", text)]
        if len(taken) > 1 and unsaid:
            yield f"{name} does not say what {', '.join(unsaid)} is"
        for error in sorted(error for error in raised(value) if f"{error}:" not in text):
            yield f"{name} does not say when it raises {error}"


@pytest.mark.parametrize("module", MODULES)
def test_it_says_what_it_takes_and_what_it_refuses(module: str) -> None:
    assert [said for name, value in public(module) for said in lacking(name, value)] == []


def test_the_walk_meets_the_whole_of_what_is_public() -> None:
    found = {name for module in MODULES for name, _ in public(module)}
    assert found > {
        "pipekit.Pipeline.train",
        "pipekit.Trace.to_perfetto",
        "pipekit.layers.skips.Skippable",
    }
    assert len(found) > 150
