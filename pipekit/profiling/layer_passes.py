"""The forward and the backward of a single layer, cut from those before and after it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from pipekit.layers.pass_state import autocast
from pipekit.layers.skips import Name, Skip, call, links
from pipekit.layers.split_backward import WeightBackward, backward_input
from pipekit.partition.recording.refusal import require_plain_operators
from pipekit.trees import Tree, differentiable, leaves, refill


class Input:
    """What a layer gets, in ``tree`` and ``skips``: the layer before's tensors without its graph.

    If they are ``editable``, the layer may write into them, and its backward is a few microseconds
    longer.
    """

    def __init__(
        self, x: Tree, editable: bool, skips: Mapping[Name, Tensor] = MappingProxyType({})
    ) -> None:
        given = (x, dict(skips))
        cut = [t.detach().requires_grad_(t.requires_grad) for t in leaves(given)]
        self._own: list[Tensor] = [_Editable.apply(t) for t in cut] if editable else []
        main, popped = refill(given, cut)
        self._popped = {n: t for n, t in popped.items() if isinstance(t, Tensor)}  # not None
        self._cut = differentiable(main)
        self.tree, self.skips = refill(given, self._own if editable else cut)

    @property
    def edited(self) -> bool:
        """Whether the layer has written into it; known only if it is editable."""
        return any(t._version for t in self._own)

    @property
    def differentiated(self) -> list[Tensor]:
        """The tensors that a backward for the input gives gradients to."""
        tensors = [*self._cut, *self._popped.values()]
        return list(dict.fromkeys(t for t in tensors if t.requires_grad))

    @property
    def gradients(self) -> list[Tensor | None]:
        """After the backward, the gradient of each differentiable tensor that has one."""
        return [t.grad for t in self._cut]

    @property
    def skip_gradients(self) -> dict[Name, Tensor | None]:
        return {name: t.grad for name, t in self._popped.items()}


def cut_forwards(
    model: nn.Sequential,
    x: Tree,
    dtype: torch.dtype | None,
    editable: Callable[[int], bool],
    around: Callable[[int], AbstractContextManager[object]],
) -> Iterator[tuple[str, Input, tuple[Tree, dict[Name, Tensor]]]]:
    """Run each layer's forward within ``around``; yield its name, what it got, made and stashed."""
    skips = crossing(model)
    under_way: dict[Name, Tensor] = {}
    for number, layer in enumerate(model):
        popped = {s.name: under_way.pop(s.name) for s in skips if s.destination == number}
        entered, name = Input(x, editable(number), popped), layer_name(layer, number)
        opened = partial(call, layer, incoming=entered.skips)
        with around(number):
            passed = run_forward(opened, name, entered.tree, dtype)
        yield name, entered, passed
        x, stashed = passed
        under_way |= stashed


def crossing(model: nn.Sequential) -> list[Skip]:
    """Return the skips that go from one layer to another."""
    return [skip for skip in links(model) if skip.source != skip.destination]


def run_forward(
    layer: Callable[[Tree], Tree], name: str, x: Tree, dtype: torch.dtype | None = None
) -> Tree:
    """Return a layer's output, computed in ``dtype`` where that is safe; None: as it comes."""
    narrow = nullcontext() if dtype is None else autocast(leaves(x)[0].device, dtype)
    with _naming(name, "forward"), narrow:
        y = layer(x)
    try:
        leaves(y)
    except TypeError as error:
        raise TypeError(f"layer {name!r} cannot be profiled: {error}") from None
    return y


def run_backward(
    name: str, y: Tree, gradients: Sequence[Tensor | None], entered: Input | None = None
) -> WeightBackward | None:
    """Run the backward of a layer with output ``y``, if it has a graph and a gradient.

    Given what ``entered`` it, run the part for that alone, and return the part for the weights.
    """
    pairs = zip(differentiable(y), gradients, strict=True)
    reached = [(t, g) for t, g in pairs if t.requires_grad and g is not None]
    if not reached:
        return None
    ends = [t for t, _ in reached], [g for _, g in reached]
    with _naming(name, "backward"):
        if entered is not None:
            return backward_input(*ends, entered.differentiated)
        torch.autograd.backward(*ends)
    return None


def layer_name(layer: nn.Module, number: int) -> str:
    """Return what a profile calls a layer, say "3 Conv2d": as ``print(layer)`` calls it."""
    return f"{number} {layer._get_name()}"


@contextmanager
def _naming(name: str, which: str) -> Iterator[None]:
    """Raise as ValueError, with the layer's name, what its pass raises."""
    try:
        yield
    except Exception as error:
        require_plain_operators(error, f"layer {name!r}")
        message = f"layer {name!r} fails in its {which}: {type(error).__name__}: {error}"
        raise ValueError(message) from error


class _Editable(torch.autograd.Function):
    """The same memory as a tensor that autograd lets nobody else edit; edits counted from 0."""

    @staticmethod
    def forward(_: FunctionCtx, x: Tensor) -> Tensor:
        return x.data

    @staticmethod
    def backward(_: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient
