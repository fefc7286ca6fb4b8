"""Which values the parameters of a notebook may have: what their comments say in brackets.

A line of the cell tagged ``parameters`` ends with the range, say::

    epochs: int = 10  # passes over the training images (1 to 1000)
    rows: int = 16  # rows of a batch (4 to 256, a multiple of 4)
    transport: str = "threads"  # how messages go ("threads" or "distributed")
    other_lrs: str = "0.03 0.1"  # further learning rates (each 0.0001 to 1)
    unet_size: str = "2 16"  # B and C of the U-Net (1 to 4, then 4 to 64)
    networks: str = "vgg16"  # to plan (each a network)
    models: str = "vgg16 2, s2vt 1"  # with their rows (listed a network, then 1 to 99)

In the brackets stand a least and a greatest number, or words of which the parameter is one;
``each`` says it of every word of a text, ``listed`` of what stands between its commas, and ``then``
of one word after another.  ``a method``, ``a network`` and ``a cluster`` are names that pipekit
knows, ``a name`` is any, which the notebook's own code looks up at once; ``a path`` is a file or a
folder, ``a tc rate`` is 10mbit, 1gbit or none; ``, or ""`` allows an empty text as well.  A number
in a text is whole if the range's are written without a point.  A truth value needs no range.
"""

import ast
import io
import re
import tokenize
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_BRACKETS = re.compile(r"\(([^()]+)\)$")
_NUMBERS = re.compile(r"(-?[\d.]+) to (-?[\d.]+)(?:, a multiple of (\d+))?")
_WORD = re.compile(r'"([^"]*)"')
_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


class Range(ABC):
    """The values that are allowed, as the comment words them."""

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def allows(self, value: Any) -> bool:
        """Return whether the value is one of them."""

    @abstractmethod
    def outside(self) -> list[Any]:
        """Return some values that are not, for tests."""


class _Numbers(Range):
    def __init__(self, text: str, low: str, high: str, multiple: str | None) -> None:
        super().__init__(text)
        self._read: type = float if "." in low + high else int
        self._low, self._high = self._read(low), self._read(high)
        self._multiple = int(multiple or 0)

    def allows(self, value: Any) -> bool:
        if isinstance(value, str):
            try:
                value = self._read(value)
            except ValueError:
                return False
        if not self._low <= value <= self._high:  # nan is in no range
            return False
        return not self._multiple or value % self._multiple == 0

    def outside(self) -> list[Any]:
        return [self._low - 1, self._high + 1, *([self._low + 1] if self._multiple else [])]


@dataclass(frozen=True)
class _Kind:
    """What is allowed by a word of ours, and which values are not."""

    allows: Callable[[Any], object]
    outside: tuple[Any, ...]


class _Named(Range):
    def __init__(self, text: str, kind: _Kind) -> None:
        super().__init__(text)
        self._kind = kind

    def allows(self, value: Any) -> bool:
        return bool(self._kind.allows(value))

    def outside(self) -> list[Any]:
        return list(self._kind.outside)


class _OneOf(Range):
    def __init__(self, text: str, words: list[str]) -> None:
        super().__init__(text)
        self._words = words

    def allows(self, value: Any) -> bool:
        return value in self._words

    def outside(self) -> list[Any]:
        return ["no-such-word"]


class _Each(Range):
    def __init__(self, text: str, separator: str | None, word: Range) -> None:
        super().__init__(text)
        self._separator, self._word = separator, word

    def allows(self, value: Any) -> bool:
        return bool(value.strip()) and all(map(self._word.allows, value.split(self._separator)))

    def outside(self) -> list[Any]:
        return [" ", *(str(each) for each in self._word.outside())]


class _Then(Range):
    def __init__(self, text: str, words: list[Range]) -> None:
        super().__init__(text)
        self._words = words

    def allows(self, value: Any) -> bool:
        given = value.split()
        return len(given) == len(self._words) and all(
            word.allows(each) for word, each in zip(self._words, given, strict=True)
        )

    def outside(self) -> list[Any]:
        return ["", " ".join(str(word.outside()[0]) for word in self._words)]


class _OrEmpty(Range):
    def __init__(self, text: str, other: Range) -> None:
        super().__init__(text)
        self._other = other

    def allows(self, value: Any) -> bool:
        return value == "" or self._other.allows(value)

    def outside(self) -> list[Any]:
        return [value for value in self._other.outside() if not self.allows(value)]


def parse(text: str) -> Range:
    """Return the range that a text describes.

    Raises:
        ValueError: it describes none.
    """
    if text.endswith(', or ""'):
        return _OrEmpty(text, parse(text.removesuffix(', or ""')))
    for word, separator in (("each ", None), ("listed ", ",")):
        if text.startswith(word):
            return _Each(text, separator, parse(text.removeprefix(word)))
    if ", then " in text:
        return _Then(text, [parse(word) for word in text.split(", then ")])
    if text in _KINDS:
        return _Named(text, _KINDS[text])
    if numbers := _NUMBERS.fullmatch(text):
        return _Numbers(text, *numbers.groups())
    if (words := _WORD.findall(text)) and not re.sub(r'"[^"]*"|,| or |\s', "", text):
        return _OneOf(text, words)
    raise ValueError(f"{text!r} is no range: see pipekit.ledger.batches.ranges")


def _a_method(value: Any) -> bool:
    from pipekit.schedules.methods.by_name import METHODS

    return value in METHODS


def _a_network(value: Any) -> bool:
    from pipekit.models import PUBLISHED  # only where one is named, since it imports torch

    return value in PUBLISHED


def _a_cluster(value: Any) -> bool:
    from pipekit.clusters.named import NAMED

    return value in NAMED


_KINDS = {
    "a path": _Kind(lambda value: bool(value.strip()) and "\0" not in value, (" ", "\0")),
    "a tc rate": _Kind(re.compile(r"\d{1,6}[kmg]bit|none").fullmatch, ("fast", "10", "")),
    "a method": _Kind(_a_method, ("no-such-method",)),
    "a cluster": _Kind(_a_cluster, ("no-such-cluster",)),
    "a name": _Kind(re.compile(r"[\w.:-]+").fullmatch, ("no/name", "")),
    "a network": _Kind(_a_network, ("no-such-network",)),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a notebook: its name, its type, and its range, None if the line has none."""

    name: str
    type: type
    range: Range | None

    def check(self, value: Any) -> None:
        """Refuse a value that is not of the type, or not in the range.

        Raises:
            ValueError: one sentence that names the parameter and what it may be.
        """
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (type(value) is self.type or (self.type is float and whole)):
            kind = _IN_WORDS[self.type]
            raise ValueError(f"the parameter {self.name} must be {kind}, not {value!r}")
        if self.range is not None and not self.range.allows(value):
            raise ValueError(
                f"the parameter {self.name} is {value!r}, outside its range: {self.range.text}"
            )


_IN_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def read(source: str) -> dict[str, Parameter]:
    """Return the parameters of a cell by name, in its order.

    Passed over is what has none of the four types; and brackets with other words hold no range.

    Args:
        source: the cell's text; each parameter stands on a line of its own.

    Raises:
        SyntaxError: the cell is no Python.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    found = {}
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, kind = statement.target.id, ast.unparse(statement.annotation)
        if kind in _TYPES:
            comment = comments.get(statement.end_lineno or 0, "")
            found[name] = Parameter(name, _TYPES[kind], _range(comment))
    return found


def _range(comment: str) -> Range | None:
    given = _BRACKETS.search(comment)
    try:
        return given and parse(given[1])
    except ValueError:
        return None
