"""The sizes of a batch in an exported graph: torch's symbols, given names."""

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

from pipekit.partition.recording.program import Growth
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import Size

ROWS = "rows"
_LEAST = 2  # torch.export takes every size for at least that, and so does whoever gives an example


class Sizes:
    """Names the symbols that stand for a batch's sizes: rows, length, length2, ...

    Args:
        batch: the batch's tensors in the graph, without numbers.
        rows: how many rows the example has.

    Attributes:
        example: how long each is in the example, by name.

    Raises:
        NotRecordable: the number of rows is not free.
    """

    def __init__(self, batch: Sequence[Tensor], rows: int) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        self.example: dict[str, int] = {}
        self._environment = None
        lengths = [(length, False) for tensor in batch for length in tensor.shape]
        firsts = [(tensor.shape[0], True) for tensor in batch if tensor.dim()]
        for length, is_first in [*firsts, *lengths]:
            if not isinstance(length, torch.SymInt):
                continue
            self._environment = length.node.shape_env
            values = self._environment.backed_var_to_val
            for symbol in sorted(length.node.expr.free_symbols - self._names.keys(), key=str):
                # Not int(length), by which torch would fix it.  Several tensors may have rows, each
                # with a symbol of its own as long as the forward compares none with another.
                is_rows = is_first and length.node.expr.xreplace(values) == rows
                self._name(symbol, int(values[symbol]), is_rows)
        if ROWS not in self.example:
            raise NotRecordable(
                f"torch.export holds the number of rows to be {rows} always, because the forward "
                f"makes an integer of it: write x.shape[0] in place of len(x), or use way='record'"
            )

    def _name(self, symbol: sympy.Symbol, value: int, is_rows: bool) -> None:
        number = len(self.example.keys() - {ROWS}) + 1
        name = "length" if number == 1 else f"length{number}"
        if is_rows:
            name = ROWS
        self._names[symbol] = sympy.Symbol(name, integer=True, positive=True)
        self.example[name] = value

    def number(self, value: Any, place: str) -> Any:
        """Return a number of the graph: itself, or what it is for any batch.

        Args:
            value: a number of Python's, or one that depends on the sizes.
            place: where it is computed, for the message.

        Raises:
            NotRecordable: it depends on the numbers in the batch.
        """
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expression = value.node.expr
        if not expression.free_symbols:
            return value.node.pytype(expression)
        if expression.free_symbols - self._names.keys():
            raise NotRecordable(
                f"{place} reads numbers of a tensor into Python, or makes a tensor whose size "
                f"depends on them: avoid it, or use way='record' and put this part into a block by "
                f"blocks=[...]"
            )
        return Size(self._text(expression))

    def growth(self, length: Any) -> Growth | None:
        """Return how a dimension's length grows with one size of the batch, or None."""
        if not isinstance(length, torch.SymInt):
            return None
        expression = length.node.expr.xreplace(self._names)
        if len(expression.free_symbols) != 1:
            return None
        (symbol,) = expression.free_symbols
        times = expression.coeff(symbol)
        plus = sympy.expand(expression - times * symbol)
        if not (times.is_Integer and plus.is_Integer):
            return None
        return Growth(str(symbol), int(times), int(plus))

    def limits(self) -> tuple[Size, ...]:
        """Return what the graph takes for granted of the batch's sizes."""
        if self._environment is None:
            return ()
        guards = [self._environment.simplify(guard.expr) for guard in self._environment.guards]
        for symbol in self._names:
            bounds = self._environment.var_to_range[symbol]
            if bounds.lower > _LEAST:
                guards.append(sympy.Ge(symbol, bounds.lower, evaluate=False))
            if bounds.upper < int_oo:
                guards.append(sympy.Le(symbol, bounds.upper, evaluate=False))
        known = [g for g in guards if g.free_symbols and g.free_symbols <= self._names.keys()]
        return tuple(dict.fromkeys(Size(self._text(guard)) for guard in known))

    def _text(self, expression: sympy.Expr) -> str:
        printed: str = PythonPrinter().doprint(expression.xreplace(self._names))
        return printed
