"""One microbatch through the unsplit model, before any worker starts."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pipekit.devices import moved
from pipekit.layers.module_state import (
    modes_put_back,
    named_buffers,
    to_training,
    weights_untouched,
)
from pipekit.layers.pass_state import autocast
from pipekit.layers.python_state import state_untouched
from pipekit.layers.seeded import Seeded
from pipekit.layers.skips import call
from pipekit.partition.handed_on import HandedOn
from pipekit.trees import Tree, leaves, tree_map


@dataclass(frozen=True)
class Probe:
    """What one microbatch tells.

    Attributes:
        flops: floating-point operations of each layer's forward.
        edited_inputs: indices of the layers whose input is edited in place, by themselves or,
            through a view, by a later layer.
        edited_weights: layers, and names of weights in them that their forward edits.
        edited_buffers: buffers of the model that its forward edits or replaces.
        handed_on: pairs of layers, the second of which reads a tensor that the first has left in
            Python.
        output: what the model gave.
    """

    flops: tuple[int, ...]
    edited_inputs: frozenset[int]
    edited_weights: tuple[tuple[int, str], ...]
    edited_buffers: frozenset[Tensor]
    handed_on: frozenset[tuple[int, int]]
    output: Tree


def probe(
    model: nn.Sequential,
    x: Tree,
    dtype: torch.dtype | None = None,
    devices: Sequence[torch.device] | None = None,
    training: bool = True,
) -> Probe:
    """Run ``x``, [rows, ...], through layers in order; they, ``x`` and generators stay as they are.

    Refused are outputs that are not tensors, and trained weights that become other tensors; edits
    of weights, or of what a module keeps in Python, are warned of.

    Args:
        dtype: of :func:`pipekit.layers.pass_state.autocast`.
        devices: of each layer; None: all are where the first parameter is.
        training: whether in training mode, or in evaluation mode.
    """
    if devices is None:
        devices = [next(model.parameters(), torch.empty(0)).device] * len(model)
    flops: list[int] = []
    under_way: dict[str, Tensor] = {}
    inputs: list[list[tuple[Tensor, int]]] = []  # of each layer, with their edits so far
    edited: list[tuple[int, str]] = []
    # Tensors of inference mode, in which somebody may evaluate, do not know of their edits.
    outside = torch.inference_mode(False)
    untouched, alone, originals = state_untouched(model), torch.no_grad(), named_buffers(model)
    with outside, untouched as state, modes_put_back(model), alone, autocast(devices[0], dtype):
        if training:
            to_training(model)
        else:
            model.eval()
        copies, handed_on = named_buffers(model), HandedOn()
        x = tree_map(lambda t: t.to(devices[0], copy=True), x)
        for number, (layer, device) in enumerate(zip(model, devices, strict=True)):
            x, under_way = moved((x, under_way), device)
            handed_on.begin(number, leaves((x, under_way)))
            inputs.append([(tensor, tensor._version) for tensor in leaves(x)])
            as_before, drawing = weights_untouched(layer), Seeded(0, device)
            with (
                handed_on,
                as_before as weights,
                drawing,
                FlopCounterMode(display=False) as counter,
            ):
                x, under_way = _run(layer, number, x, under_way)
                edited += [(number, name) for name in weights.edited()]
                _require_in_place(number, layer, weights.rebound())
            flops.append(counter.get_total_flops())
        now = named_buffers(model)
        edited_buffers = frozenset(
            originals[name]
            for name, copy in copies.items()
            if now.get(name) is not copy or copy._version
        )
        kept = [f"{each.module}.{each.key}" for each in state.changes() if not each.is_new]
        _warn_of_edits([*(f"{number}.{name}" for number, name in edited), *kept])
    edited_inputs = {
        number
        for number, tensors in enumerate(inputs)
        if any(tensor._version != version for tensor, version in tensors)
    }
    edits = frozenset(edited_inputs), tuple(edited), edited_buffers
    return Probe(tuple(flops), *edits, frozenset(handed_on.found), x)


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


def _warn_of_edits(names: Sequence[str]) -> None:
    """Say what each forward changes that is neither a buffer nor an activation."""
    if names:
        warnings.warn(
            f"the forward changes {', '.join(dict.fromkeys(names))}: in a pipeline it does so for "
            f"each microbatch, once more where it is recomputed, and in each weight version's copy "
            f"of the module. Where the output depends on it, keep it in a buffer that is edited in "
            f"place; if it tells that weights have been initialized, run the model on a batch "
            f"before",
            stacklevel=2,
        )


def _require_in_place(number: int, layer: nn.Module, rebound: Sequence[str]) -> None:
    """Raise ValueError if a trained weight of a layer is another tensor than before its forward."""
    for name in rebound:
        if layer.get_parameter(name).requires_grad:
            raise ValueError(
                f"the forward of layer {number} gives {name!r} another tensor (weight.data = ...), "
                f"which its optimizer would not have: edit it in place, weight.copy_(...) under "
                f"torch.no_grad()"
            )


def layer_costs(model: nn.Sequential, flops: Sequence[int]) -> list[float]:
    """Return each layer's operations for a microbatch, by which stages are balanced.

    A backward takes twice a forward's, and adds one number to the gradient of each parameter that
    is trained.  What memory alone limits (poolings, activation functions) counts nothing here; a
    profile knows of it.  The parameters' bytes do not count either: most of a small convolutional
    network's are in a linear layer that takes little time.
    """
    trained = [sum(p.numel() for p in layer.parameters() if p.requires_grad) for layer in model]
    return [3.0 * f + p for f, p in zip(flops, trained, strict=True)]
