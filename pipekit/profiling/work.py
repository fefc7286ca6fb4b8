"""Operations and bytes moved by whatever runs under a counter."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_Shape = Sequence[int]


@dataclass(frozen=True)
class Work:
    """What one pass of one layer does.

    Attributes:
        flops: floating-point operations of matrix products, convolutions and attention, a
            multiply-add being two; others are not counted.
        moved_bytes: bytes of the tensors that each operator reads and writes, views excepted.
    """

    flops: int
    moved_bytes: int


class CountWork:
    """Counts the work done within its ``with`` block, on the way to :attr:`work`."""

    def __init__(self) -> None:
        self._flops = FlopCounterMode(display=False, custom_mapping=_RECURRENT)
        self._moved = _MovedBytes()
        self._modes = ExitStack()

    def __enter__(self) -> Self:
        self._modes.enter_context(self._flops)
        self._modes.enter_context(self._moved)
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)

    @property
    def work(self) -> Work:
        """What was done, once the block is left."""
        return Work(self._flops.get_total_flops(), self._moved.total)


class _MovedBytes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        if made and not _is_view(func, given, made):
            self.total += sum(map(_bytes, given)) + sum(map(_bytes, made))
        return result


def _is_view(func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    memory = {t.untyped_storage()._cdata for t in given}
    return not func._schema.is_mutable and any(t.untyped_storage()._cdata in memory for t in made)


def _bytes(tensor: Tensor) -> int:
    """Return a tensor's bytes; those of one that was expanded lie in memory once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _onednn(x: _Shape, w0: _Shape, w1: _Shape, *_: Any, **__: Any) -> int:
    return _recurrent_flops(x, [w0, w1])


def _cudnn(x: _Shape, weights: Sequence[_Shape], *_: Any, **__: Any) -> int:
    return _recurrent_flops(x, weights)


def _recurrent_flops(x: _Shape, weights: Sequence[_Shape]) -> int:
    """Return the forward's operations: each step multiplies a row with every matrix."""
    matrices = [shape for shape in weights if len(shape) == 2]
    return 2 * x[0] * x[1] * sum(shape[0] * shape[1] for shape in matrices)


_RECURRENT: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _onednn,
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda *args, **_: 2 * _onednn(*args),
    torch.ops.aten._cudnn_rnn: _cudnn,
    torch.ops.aten._cudnn_rnn_backward: lambda *args, **_: 2 * _cudnn(*args),
}
"""Fused recurrent layers, which PyTorch's counter does not know; x is [T, B, features] or [B, T,
features], and other weights than matrices are biases.  A backward has two products for each of the
forward's: one for what came in and one for the weight."""
