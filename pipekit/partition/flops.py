"""Floating-point operations, counted while operators run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, shape_wrapper

from pipekit.layers.edited_tensors import OperatorMode
from pipekit.trees import tensors_in

_Shape = Sequence[int]


class FlopCounter(OperatorMode):
    """Adds up in ``flops`` what operators compute, by torch's formulas.

    What nested tensors do, of which these know no shape, is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = _FORMULAS.get(func.overloadpacket)  # type: ignore[attr-defined]
        if formula and not any(tensor.is_nested for tensor in tensors_in((args, kwargs))):
            self.flops += formula(*args, **kwargs, out_val=result)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep the compiler, which compiled layers call, out of the counting."""
        return True


def _recurrent(times: int, x: _Shape, *rest: Any, **_: Any) -> int:
    """Return the operations of a recurrent layer: each step multiplies a row with every matrix.

    Its weights come next to x: oneDNN's two of them, cuDNN's in a list with the biases.
    """
    weights = rest[0] if isinstance(rest[0][0], Sequence) else rest[:2]
    matrices = [shape for shape in weights if len(shape) == 2]
    products = sum(int(shape[0]) * int(shape[1]) for shape in matrices)
    return times * 2 * x[0] * x[1] * products


_RECURRENT: dict[Any, int] = {
    torch.ops.aten.mkldnn_rnn_layer: 1,
    torch.ops.aten.mkldnn_rnn_layer_backward: 2,
    torch.ops.aten._cudnn_rnn: 1,
    torch.ops.aten._cudnn_rnn_backward: 2,
}
"""Fused recurrent layers, which torch's formulas leave out; x is [T, B, features] or [B, T,
features].  A backward has two products for each of the forward's: one for what came in and one for
the weight."""

_FORMULAS: dict[Any, Callable[..., int]] = flop_registry | {
    operator: shape_wrapper(partial(_recurrent, times)) for operator, times in _RECURRENT.items()
}
