"""Tables of a study: a function over a grid, ours beside the printed, what is far or just fits."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from experiments.study.claims import points
from pipekit.ledger import claims


def table(function: Callable[..., Any], **axes: Iterable[Any]) -> pd.DataFrame:
    """Return a row for each combination of the axes' values: these, and what the function returns.

    The function is called with the axes' names; it returns the row's further columns, or a single
    number, whose column has the function's name.
    """
    rows = []
    for point in points({name: list(values) for name, values in axes.items()}):
        result = function(**point)
        rows.append(
            point | (dict(result) if isinstance(result, Mapping) else {_name(function): result})
        )
    return pd.DataFrame(rows)


def against(paper: Mapping[Any, Any], **ours: Mapping[Any, Any]) -> pd.DataFrame:
    """Return numbers of ours beside the printed ones, a row a name.

    Columns: "paper", then ``ours`` by their names, and "ratio", the first of them over the paper's.
    :func:`.figures.named_rows` draws it without its last column.
    """
    first, *_ = ours.values()
    frame = pd.DataFrame({"paper": pd.Series(paper), **{k: pd.Series(v) for k, v in ours.items()}})
    frame = frame.loc[list(first)]
    return frame.assign(ratio=pd.Series(first) / frame["paper"])


def printed(claim: str) -> str:
    """Return the value that a paper prints for a claim, as text; of no such claim a KeyError."""
    return claims.load()[claim].value


def printed_number(claim: str) -> Any:
    """Return the number, or the list of numbers, that a claim's criterion compares with."""
    return claims.load()[claim].reference


def farthest(values: Iterable[Any], expected: float) -> Any:
    """Return the number that is farthest from what all should be."""
    return max(values, key=lambda value: abs(value - expected))


def largest_that_fits(fits: Callable[[int], bool], most: int | None = None) -> int:
    """Return the largest number that fits, up to ``most`` or found by doubling; 0 if 1 does not."""
    if most is None:
        most = 1
        while fits(most):
            most *= 2
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "value"))
