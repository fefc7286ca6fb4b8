"""Numbers that know how Python computed them from the lengths of tensors."""

import math
import operator
from collections.abc import Callable
from typing import Any

FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (abs, math.ceil, math.floor, round, math.trunc)
}
"""What stands in expressions by its name."""

_SIGNS = {"neg": "-", "pos": "+", "invert": "~"}
_ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class TracedNumber:
    """A number with its expression in the lengths of tensors.

    ``report`` is called with each comparison, as it was true, since it may decide what runs.
    """

    expression: str
    report: Callable[[str], None]

    def __reduce__(self) -> Any:
        """Become a plain number where it is copied or sent."""
        return type(plain(self)), (plain(self),)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __bool__(self) -> bool:
        return bool(self.__ne__(0))


class _Int(TracedNumber, int): ...


class _Float(TracedNumber, float): ...


def traced(number: Any, expression: str, report: Callable[[str], None]) -> Any:
    """Return an equal whole or floating-point number that knows its expression."""
    if type(number) not in (int, float):
        return number
    made = _Int(number) if type(number) is int else _Float(number)
    made.expression, made.report = expression, report
    return made


def plain(number: Any) -> Any:
    """Return a number without its expression; all else as it is."""
    if isinstance(number, TracedNumber):
        return int(number) if isinstance(number, int) else float(number)  # type: ignore[arg-type]
    return number


def _text(number: Any) -> str:
    if isinstance(number, TracedNumber):
        return number.expression
    return repr(number) if number >= 0 else f"({number!r})"


def _is_known(other: Any) -> bool:
    return isinstance(other, (int, float)) and math.isfinite(other)


def _function(function: Callable[..., Any], text: str) -> Callable[..., Any]:
    def method(self: Any, *more: Any) -> Any:  # the digits of round()
        found = function(plain(self), *map(plain, more))
        return traced(found, f"({text}({', '.join(map(_text, (self, *more)))}))", self.report)

    return method


def _arithmetic(name: str, sign: str, reflected: bool) -> Callable[[Any, Any], Any]:
    function = getattr(operator, f"__{name}__")

    def method(self: Any, other: Any) -> Any:
        if not _is_known(other):
            return NotImplemented
        one, two = (other, self) if reflected else (self, other)
        text = f"({_text(one)} {sign} {_text(two)})"
        return traced(function(plain(one), plain(two)), text, self.report)

    return method


def _comparison(name: str, sign: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if not _is_known(other):
            return NotImplemented
        is_so = function(plain(self), plain(other))
        self.report(f"{_text(self)} {sign if is_so else _OPPOSITES[sign]} {_text(other)}")
        return is_so

    return method


for _name, _known in FUNCTIONS.items():
    setattr(TracedNumber, f"__{_name}__", _function(_known, _name))
for _name, _sign in _SIGNS.items():
    setattr(TracedNumber, f"__{_name}__", _function(getattr(operator, _name), _sign))
for _name, _sign in _ARITHMETIC.items():
    setattr(TracedNumber, f"__{_name}__", _arithmetic(_name, _sign, reflected=False))
    setattr(TracedNumber, f"__r{_name}__", _arithmetic(_name, _sign, reflected=True))
for _name, _sign in _COMPARISONS.items():
    setattr(TracedNumber, f"__{_name}__", _comparison(_name, _sign))
