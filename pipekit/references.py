"""The user's own objects, named as ``package.module:name`` or ``FILE.py:name``."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def require_module(reference: str) -> None:
    """Raise ValueError unless a reference names a module or file that can be found."""
    place, _ = _parts(reference)
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ValueError(f"{reference!r}: there is no file {place}")
        return
    here = str(Path.cwd())
    if here not in sys.path:  # as python -m does, unlike an installed command
        sys.path.insert(0, here)
    try:
        there = find_spec(place) is not None
    except ModuleNotFoundError:  # nor its package
        there = False
    if not there:
        raise ValueError(f"{reference!r}: no module is named {place!r}, installed or in {here}")


def load(reference: str) -> Any:
    """Return what a reference names; ValueError says what is not there."""
    require_module(reference)
    place, path = _parts(reference)
    found: Any = _file(Path(place)) if place.endswith(".py") else import_module(place)
    for name in path.split("."):
        if not hasattr(found, name):
            there = ", ".join(n for n in vars(found) if not n.startswith("_"))
            raise ValueError(f"{reference!r}: {place} has no {name!r}, only {there}")
        found = getattr(found, name)
    return found


def _parts(reference: str) -> tuple[str, str]:
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ValueError(
            f"{reference!r} is not a package.module:name: write nets:make for a function make() "
            f"in the file nets.py"
        )
    return place, name


def _file(path: Path) -> ModuleType:
    if (folder := str(path.resolve().parent)) not in sys.path:  # as for a script
        sys.path.insert(0, folder)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
