"""One microbatch through the unsplit model, before any worker starts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pipekit.layers.autocast import autocast
from pipekit.layers.buffers import buffers_untouched
from pipekit.layers.seeded import Seeded
from pipekit.trees import Tree, leaves, tree_map


@dataclass(frozen=True)
class Probe:
    """What one microbatch tells.

    Attributes:
        random_layers: indices of the layers that draw random numbers in training.
        flops: floating-point operations of each layer's forward.
        edited_inputs: indices of the layers whose input is edited in place, by themselves or,
            through a view, by a later layer.
    """

    random_layers: frozenset[int]
    flops: tuple[int, ...]
    edited_inputs: frozenset[int]


def probe(model: nn.Sequential, x: Tree, dtype: torch.dtype | None = None) -> Probe:
    """Run ``x`` through ``model`` in training mode; leave model, ``x`` and generators untouched.

    Operators compute in ``dtype`` where that is safe (:func:`pipekit.layers.autocast.autocast`).

    Raises:
        TypeError: a layer's output is not made of tensors; the message names the layer.
        Exception: whatever a layer raises, with a note that names it.
    """
    device = next(model.parameters(), torch.empty(0)).device
    x = tree_map(lambda t: t.to(device, copy=True), x)
    random_layers, flops = set(), []
    inputs: list[list[tuple[Tensor, int]]] = []  # of each layer, with their edits so far
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with buffers_untouched(model), torch.no_grad(), autocast(device, dtype):
            for number, layer in enumerate(model):
                inputs.append([(tensor, tensor._version) for tensor in leaves(x)])
                with Seeded(0, device) as seeded, FlopCounterMode(display=False) as counter:
                    x = _run(layer, number, x)
                flops.append(counter.get_total_flops())
                if seeded.drew:
                    random_layers.add(number)
    finally:
        for module, training in modes.items():
            module.training = training
    edited = {
        number
        for number, tensors in enumerate(inputs)
        if any(tensor._version != version for tensor, version in tensors)
    }
    return Probe(frozenset(random_layers), tuple(flops), frozenset(edited))


def _run(layer: nn.Module, number: int, x: Tree) -> Tree:
    name = f"layer {number} ({type(layer).__name__})"
    try:
        y = layer(x)
    except Exception as error:
        error.add_note(f"(raised in {name}, tried on the first microbatch before training)")
        raise
    try:
        leaves(y)
    except TypeError as error:
        raise TypeError(f"{name} returns something that cannot be passed on: {error}") from None
    return y
