"""The bar above an explorer's controls: presets, the setting as Python and as a link, and waits."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import anywidget
import traitlets

Chosen = Callable[[Mapping[str, Any]], None]
"""What is done with a setting that the reader asks for."""


class Setting(anywidget.AnyWidget):
    """What an explorer shows now, to be copied; and other settings to go to.

    Attributes:
        presets: the names of settings to begin with.
        code: Python that returns what is shown.
        fragment: of a link to it.
        waits_for: what a new picture takes time for.
        busy: whether one is being made.
    """

    _esm = Path(__file__).with_name("setting.js")
    _css = Path(__file__).with_name("explore.css")
    presets = traitlets.List(traitlets.Unicode()).tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    fragment = traitlets.Unicode().tag(sync=True)
    waits_for = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(self, presets: Mapping[str, Mapping[str, Any]], waits_for: str, go: Chosen):
        """Make the bar; ``go`` gets a preset's values, or a link's, which are text."""
        super().__init__(presets=[*presets], waits_for=waits_for)
        self._presets, self._go = presets, go
        self.on_msg(self._asked)

    def show(self, see: Callable[..., Any], values: Mapping[str, Any]) -> None:
        """Say what is shown: what ``see`` returns for these values."""
        self.code, self.fragment = code(see, values), fragment(see, values)

    def _asked(self, _widget: object, content: Any, _buffers: object) -> None:
        if "preset" in content:
            self._go(self._presets[content["preset"]])
        elif content["fragment"] != self.fragment:
            self._go(dict(parse_qsl(content["fragment"].partition("?")[2])))


def code(see: Callable[..., Any], values: Mapping[str, Any]) -> str:
    """Return Python that calls ``see``; what it was given beforehand goes by its own names."""
    function = see.func if isinstance(see, partial) else see
    given = [*inspect.signature(function).parameters][: len(getattr(see, "args", ()))]
    arguments = [*given, *(f"{name}={_written(value)}" for name, value in values.items())]
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"from {function.__module__} import see\n\nview = see(\n{lines})\n"


def fragment(see: Callable[..., Any], values: Mapping[str, Any]) -> str:
    """Return the part of a link behind its ``#``: the explorer, and its controls' values."""
    function = see.func if isinstance(see, partial) else see
    return f"{function.__module__}?{urlencode(values)}"


def _written(value: Any) -> str:
    return 'float("inf")' if value == math.inf else repr(value)
