"""Which values the parameters of a notebook may have: what their comments say in brackets.

A line of the cell tagged ``parameters`` ends with the range, if it has one::

    epochs: int = 10  # passes over the training images [1, 1000]
    scale: str = "quick"  # what the experiment file chose [quick | full]

``[a, b]`` are a least and a greatest number, ``[x | y]`` the only values.  Of a text, such as
``"0.03 0.1"``, either says it of every word.
"""

import ast
import re
from dataclasses import dataclass
from typing import Any

_BETWEEN = r"\[(-?[\d.]+), (-?[\d.]+)\]"
_ONE_OF = r"\[[^][|]+(?: \| [^][|]+)+\]"
_TYPES: dict[str, tuple[type, str]] = {
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "a text"),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a notebook, of a kind, with the brackets at the end of its comment, if any."""

    name: str
    kind: str
    range: str

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or out of the range, by a ValueError."""
        kind, in_words = _TYPES[self.kind]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"the parameter {self.name} must be {in_words}, not {value!r}")
        each = value.split() if isinstance(value, str) else [value]
        if self.range and not (each and all(map(self._allows, each))):
            raise ValueError(
                f"the parameter {self.name} is {value!r}, outside its range: {self.range}"
            )

    @property
    def ends(self) -> tuple[float, float] | None:
        """The least and the greatest number; None unless the range has them."""
        found = re.fullmatch(_BETWEEN, self.range)
        number = float if "." in self.range else int
        return (number(found[1]), number(found[2])) if found else None

    def _allows(self, value: Any) -> bool:
        """Return whether the range has a value; nan is in none."""
        if self.ends is None:
            return str(value) in self.range[1:-1].split(" | ")
        low, high = self.ends
        try:
            number = type(low)(value) if isinstance(value, str) else value
        except ValueError:
            return False
        return bool(low <= number <= high)


def assigned(source: str) -> list[str]:
    """Return the names that a cell assigns; a SyntaxError: it is not Python."""
    nodes = ast.walk(ast.parse(source))
    return [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def read(source: str) -> dict[str, Parameter]:
    """Return the parameters of a cell by name, in their order.

    Other types are passed over, and brackets with other words. A SyntaxError: it is not Python.
    """
    lines, found = re.split("\r\n?|\n", source), {}
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, kind = statement.target.id, ast.unparse(statement.annotation)
        if kind in _TYPES and statement.end_lineno:
            comment = lines[statement.end_lineno - 1].encode()[statement.end_col_offset or 0 :]
            ranges = re.search(f"({_BETWEEN}|{_ONE_OF})$", comment.decode())
            found[name] = Parameter(name, kind, ranges[0] if ranges else "")
    return found
