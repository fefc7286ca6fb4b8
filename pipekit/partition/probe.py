"""One microbatch through the unsplit model, before any worker starts."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pipekit.devices import moved
from pipekit.layers.autocast import autocast
from pipekit.layers.modes import modes_put_back, to_training
from pipekit.layers.python_state import Change, state_untouched
from pipekit.layers.seeded import Seeded
from pipekit.layers.skips import call
from pipekit.trees import Tree, leaves, tree_map


@dataclass(frozen=True)
class Probe:
    """What one microbatch tells.

    Attributes:
        flops: floating-point operations of each layer's forward.
        edited_inputs: indices of the layers whose input is edited in place, by themselves or,
            through a view, by a later layer.
    """

    flops: tuple[int, ...]
    edited_inputs: frozenset[int]


def probe(
    model: nn.Sequential,
    x: Tree,
    dtype: torch.dtype | None = None,
    devices: Sequence[torch.device] | None = None,
    training: bool = True,
) -> Probe:
    """Run ``x`` through ``model``; leave model, ``x`` and generators untouched.

    Args:
        model: layers in order.
        x: the first one's input, [rows, ...].
        dtype: what operators compute in where that is safe
            (:func:`pipekit.layers.autocast.autocast`), or None.
        devices: of each layer; None: all are where the first parameter is.
        training: whether in training mode, or in evaluation mode.

    Warns:
        UserWarning: a forward changes what a module keeps in Python.

    Raises:
        TypeError: a layer's output is not made of tensors; the message names the layer.
        Exception: whatever a layer raises, with a note that names it.
    """
    if devices is None:
        devices = [next(model.parameters(), torch.empty(0)).device] * len(model)
    flops: list[int] = []
    under_way: dict[str, Tensor] = {}
    inputs: list[list[tuple[Tensor, int]]] = []  # of each layer, with their edits so far
    # Tensors of inference mode, in which somebody may evaluate, do not know of their edits.
    outside = torch.inference_mode(False)
    untouched, alone = state_untouched(model), torch.no_grad()
    with outside, untouched as state, modes_put_back(model), alone, autocast(devices[0], dtype):
        if training:
            to_training(model)
        else:
            model.eval()
        x = tree_map(lambda t: t.to(devices[0], copy=True), x)
        for number, (layer, device) in enumerate(zip(model, devices, strict=True)):
            x, under_way = moved((x, under_way), device)
            inputs.append([(tensor, tensor._version) for tensor in leaves(x)])
            with Seeded(0, device), FlopCounterMode(display=False) as counter:
                x, under_way = _run(layer, number, x, under_way)
            flops.append(counter.get_total_flops())
        _warn_of_state([change for change in state.changes() if not change.is_new])
    edited = {
        number
        for number, tensors in enumerate(inputs)
        if any(tensor._version != version for tensor, version in tensors)
    }
    return Probe(tuple(flops), frozenset(edited))


def _run(
    layer: nn.Module, number: int, x: Tree, incoming: dict[str, Tensor]
) -> tuple[Tree, dict[str, Tensor]]:
    name = f"layer {number} ({type(layer).__name__})"
    try:
        y, under_way = call(layer, x, incoming)
    except Exception as error:
        error.add_note(f"(raised in {name}, tried on the first microbatch before training)")
        raise
    try:
        leaves(y)
    except TypeError as error:
        raise TypeError(f"{name} returns something that cannot be passed on: {error}") from None
    return y, under_way


def _warn_of_state(changes: Sequence[Change]) -> None:
    """Say which layers keep something in Python that each forward changes."""
    if changes:
        names = ", ".join(dict.fromkeys(f"{each.module}.{each.key}" for each in changes))
        warnings.warn(
            f"the forward changes {names}: in a pipeline it does so for each microbatch, once "
            f"more where it is recomputed, and in each weight version's copy of the module. Where "
            f"the output depends on it, keep it in a buffer that is edited in place; if it tells "
            f"that weights have been initialized, run the model on a batch before",
            stacklevel=2,
        )
