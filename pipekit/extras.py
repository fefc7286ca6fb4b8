"""Libraries that not everybody installs: which of pipekit's extras has the one that is missing."""

from importlib import import_module
from typing import Any

_TORCH = ("cloudpickle", "mlxtend", "sklearn", "torch", "torchvision")
_NOTEBOOKS = (
    "anywidget",
    "IPython",
    "ipykernel",
    "ipywidgets",
    "jupyter_client",
    "nbconvert",
    "nbformat",
    "papermill",
    "traitlets",
)
EXTRA = {**dict.fromkeys(_TORCH, "torch"), **dict.fromkeys(_NOTEBOOKS, "notebooks")}
"""The extra that brings a library, by the name that it is imported by."""


def imported(module: str) -> Any:
    """Import a module; if a library is not installed, the error says which extra has it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise with_remedy(error) from error


def with_remedy(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that says what to install, or the same one if that is not known."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA:
        return error
    return ModuleNotFoundError(
        f"this needs {library}, which is not installed: pip install 'pipekit[{EXTRA[library]}]'",
        name=error.name,
    )
