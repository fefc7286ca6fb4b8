"""Operations and bytes moved by whatever runs under a counter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipekit.partition.probe import FlopCounter
from pipekit.trees import tensors_in

WINOGRAD_SAVES = 2.25
"""How many times fewer multiplications F(2x2, 3x3) has (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016, section 4.1)."""


class Operator(NamedTuple):
    """What one operator does."""

    flops: int  # of a matrix product, convolution or attention, a multiply-add being two; else 0
    moved_bytes: int  # of the tensors that it reads and writes
    winograd: bool = False  # whether Winograd's algorithm could do it


class Work(list[Operator]):
    """What one pass of one layer does: its operators in their order, views excepted."""

    @property
    def flops(self) -> int:
        return sum(operator.flops for operator in self)

    def seconds(self, flops: float, bandwidth: float, winograd: bool = False) -> float:
        """Return how long they take one after another, each by the roofline."""
        return sum(
            max(
                each.flops / (WINOGRAD_SAVES if winograd and each.winograd else 1) / flops,
                each.moved_bytes / bandwidth,
            )
            for each in self
        )

    def seconds_at_once(self, flops: float, bandwidth: float) -> float:
        """Return how long they take as one operator, which computes while it reads and writes."""
        return max(self.flops / flops, sum(each.moved_bytes for each in self) / bandwidth)


@contextmanager
def counted_work() -> Iterator[Work]:
    """Give what the ``with`` block does, which grows meanwhile."""
    with _Operators() as operators:
        yield operators.done


class _Operators(FlopCounter):
    def __init__(self) -> None:
        super().__init__()
        self.done = Work()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        before = self.flops
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given, made = map(_dense_in, ((args, kwargs), result))
        memory = {t.untyped_storage()._cdata for t in given}
        is_new = [t.untyped_storage()._cdata not in memory for t in made]
        if made and (func._schema.is_mutable or all(is_new)):  # type: ignore[attr-defined]
            moved = sum(map(_bytes, given)) + sum(map(_bytes, made))
            self.done.append(Operator(self.flops - before, moved, _winograd_can(func, args)))
        return result


def _winograd_can(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether it is a convolution of 3 x 3 with stride 1, or the backward of one."""
    operator = func.overloadpacket
    if operator not in (torch.ops.aten.convolution, torch.ops.aten.convolution_backward):
        return False
    # (input, weight, bias, stride, ...), and in the backward the output's gradient before them
    rest = args[1:] if operator is torch.ops.aten.convolution_backward else args
    weight, stride, dilation, transposed, groups = (rest[n] for n in (1, 3, 5, 6, 8))
    ordinary = {*stride, *dilation, groups} == {1} and not transposed
    return ordinary and tuple(weight.shape[2:]) == (3, 3)


def _dense_in(tree: Any) -> list[Tensor]:
    """Return the tensors in a tree; of sparse ones, such as an embedding's gradient, the values."""
    return [t._values() if t.layout is torch.sparse_coo else t for t in tensors_in(tree)]


def _bytes(tensor: Tensor) -> int:
    """Return a tensor's bytes; those of one that was expanded lie in memory once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
