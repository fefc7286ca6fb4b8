"""One microbatch through the unsplit model, before any worker starts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper
from torch.utils.weak import WeakTensorKeyDictionary

from pipekit.devices import as_current, moved
from pipekit.host.user_frames import warn
from pipekit.layers.edited_tensors import OperatorMode, memory_of, weights_untouched
from pipekit.layers.module_state import (
    computing,
    modes_put_back,
    named_buffers,
    state_untouched,
    to_training,
    trained,
)
from pipekit.layers.pass_state import autocast
from pipekit.layers.python_state import Change, is_pure, module_names
from pipekit.layers.seeded import Seeded, drawn_since, numbers_so_far
from pipekit.layers.skips import call
from pipekit.partition.recording.refusal import require_plain_operators
from pipekit.trees import Tree, differentiable, is_plain, leaves, tensors_in, tree_map


@dataclass
class Probe:
    """What one microbatch tells, filled while layers run; these are named by their numbers."""

    flops: tuple[int, ...] = ()  # floating-point operations of each layer's forward
    output: Tree = ()
    edited_inputs: set[int] = field(default_factory=set)  # by the layer, or a later one's view
    edited_weights: list[tuple[int, str]] = field(default_factory=list)  # layers, names in them
    needed_weights: list[tuple[int, str]] = field(default_factory=list)  # by an earlier's backward
    edited_buffers: dict[str, Tensor | None] = field(default_factory=dict)  # None: made anew
    handed_on: set[tuple[int, int]] = field(default_factory=set)  # beside outputs, between layers
    drawn: dict[str, list[int]] = field(default_factory=dict)  # layers, by library
    drew: bool = False  # random numbers of torch's
    edits_batch: bool = False  # whether x is edited in place, by a second forward once more
    set_attributes: list[tuple[int, str, Any]] = field(default_factory=list)  # module's number, ...
    recorded: list[str] = field(default_factory=list)  # by hooks, in what their functions name


def probe(
    model: nn.Sequential,
    x: Tree,
    dtype: torch.dtype | None = None,
    devices: Sequence[torch.device] | None = None,
    training: bool = True,
) -> Probe:
    """Run ``x``, [rows, ...], through layers in order; they, ``x`` and generators stay as they are.

    Refused are outputs that are not tensors, and trained weights that become other tensors; edits
    of weights, or of what a module keeps in Python, are warned of.  ``dtype`` is autocast's, and
    ``devices`` are those of each layer: by default that of the first parameter.
    """
    if devices is None:
        devices = [next(model.parameters(), torch.empty(0)).device] * len(model)
    run = _run_pure if is_pure(model) else _run_watched
    # Tensors of inference mode, in which somebody may evaluate, do not know of their edits.
    with torch.inference_mode(False), torch.no_grad(), autocast(devices[0], dtype):
        x = tree_map(lambda tensor: tensor.to(devices[0], copy=True), x)
        with modes_put_back(model):
            (to_training if training else nn.Module.eval)(model)
            return run(model, x, devices)


def _run_pure(model: nn.Sequential, x: Tree, devices: Sequence[torch.device]) -> Probe:
    """Run layers that leave nothing behind: only their operations and their output are unknown."""
    found = Probe()
    for number, (layer, device) in enumerate(zip(model, devices, strict=True)):
        with (
            as_current(device),
            Seeded(0, device) as drawing,
            FlopCounter() as counter,
            _explained(number, layer),
        ):
            x = layer(moved(x, device))
        _require_tensors(number, layer, x)
        found.flops += (counter.flops,)
        found.drew |= drawing.drew
    found.output = x
    return found


def _run_watched(model: nn.Sequential, x: Tree, devices: Sequence[torch.device]) -> Probe:
    """Run layers of whose forwards nothing is known, and watch what they read and leave."""
    found, batch = Probe(), x
    under_way: dict[str, Tensor] = {}
    inputs: list[list[tuple[Tensor, int]]] = []  # of each layer, with their edits so far
    originals, parameters = named_buffers(model), {*model.parameters()}
    with state_untouched(model) as state:
        copies, watching = named_buffers(model), HandedOn(found)
        for number, (layer, device) in enumerate(zip(model, devices, strict=True)):
            if number:  # the first layer is given the very batch, as it may edit a dict
                x, under_way = moved((x, under_way), device)
            watching.begin(number, leaves((x, under_way)))
            inputs.append([(tensor, tensor._version) for tensor in leaves(x)])
            taken, drawing, numbers = (x, under_way), Seeded(0, device), numbers_so_far()
            with as_current(device), weights_untouched(layer) as weights:
                # Each mode sees each operator: none is there while weights are compared.
                with watching, drawing, FlopCounter() as counter, _explained(number, layer):
                    x, under_way = call(layer, x, under_way)
                _require_tensors(number, layer, x)
                edits = [(number, name) for name in weights.edited()]
                _require_in_place(number, layer, weights.rebound())
            found.flops += (counter.flops,)
            found.drew |= drawing.drew
            found.edited_weights += edits
            for library in drawn_since(numbers):
                found.drawn.setdefault(library, []).append(number)
            with Seeded(0, device):
                found.needed_weights += edits if edits and _needs_edited(layer, *taken) else []
        if late := [n for n, each in model.named_parameters() if each not in parameters]:
            raise ValueError(
                f"the first forward makes the parameter {late[0]!r}, which no optimizer would "
                f"have: make it in __init__, or call the model on a batch before, model(example)"
            )
        changes, now = state.changes(), named_buffers(model)
        found.set_attributes += _set_attributes(model, changes)
        found.recorded += [each.name for each in changes if each.by_hook]
        for name in {**copies, **now}:
            if now.get(name) is not copies.get(name) or _is_edited(now[name], originals[name]):
                found.edited_buffers[name] = originals.get(name)
        known = [each for each in changes if not (each.is_new or each.by_hook)]
        kept = [e.name for e in known if not (isinstance(e.value, Tensor) and computing(e.module))]
        _warn_of_edits([*(f"{number}.{name}" for number, name in found.edited_weights), *kept])
        for number, tensors in enumerate(inputs):
            is_edited = any(tensor._version != version for tensor, version in tensors)
            is_shared = len({memory_of(tensor) for tensor, _ in tensors}) < len(tensors)
            is_dense = all(tensor.layout is torch.strided for tensor, _ in tensors)
            if is_edited:
                found.edited_inputs.add(number)
            # Between stages go dense tensors of their own, where an edit of one changed another.
            if number and ((is_edited and is_shared) or not is_dense):
                found.handed_on.add((number - 1, number))
        is_other = [*map(id, _held(batch))] != [id(tensor) for tensor, _ in inputs[0]]
        found.edits_batch = (0 in found.edited_inputs or is_other) and _edits(model, batch, devices)
    found.output = x
    return found


def _is_edited(tensor: Tensor, before: Tensor) -> bool:
    """Return whether a copy was edited; no version counts what ``.data`` or an observer writes."""
    return tensor._version > 0 or (is_plain(tensor) and not torch.equal(tensor, before))


class FlopCounter(TorchDispatchMode):
    """Adds up in ``flops`` what operators compute, by torch's formulas.

    What nested tensors do, of which these know no shape, is left out.  The compiler, which compiled
    layers call, passes over such a mode, and would trace an OperatorMode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = _FORMULAS.get(func.overloadpacket)  # type: ignore[attr-defined]
        is_nested = types and any(each.is_nested for each in tensors_in((args, kwargs)))
        if formula and not is_nested:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def _recurrent(times: int, x: Sequence[int], *rest: Any, **_: Any) -> int:
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


class HandedOn(OperatorMode):
    """Finds layers that read a tensor of another layer which they are not given.

    Meant are tensors that depend on the model's input: of others each stage makes its own.
    ``found`` gets pairs of layers, the one that made a tensor and the one that read it.
    """

    def __init__(self, found: Probe) -> None:
        super().__init__()
        self._found, self._layer = found, 0
        self._owners = WeakTensorKeyDictionary()

    def begin(self, layer: int, given: Iterable[Tensor]) -> None:
        self._layer = layer
        self._owners.update(dict.fromkeys(given, layer))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tensors_in((args, kwargs))
        owners = {self._owners[each] for each in given if each in self._owners}
        self._found.handed_on |= {(owner, self._layer) for owner in owners - {self._layer}}
        result = func(*args, **(kwargs or {}))
        name = func._schema.name  # type: ignore[attr-defined]
        if owners and not ("::new_" in name or name.endswith("_like")):
            self._owners.update(dict.fromkeys(tensors_in(result), self._layer))
        return result


def _edits(model: nn.Sequential, batch: Tree, devices: Sequence[torch.device]) -> bool:
    """Return whether a second forward changes its input again, as one of a ReLU does not."""
    before = [each.clone() if isinstance(each, Tensor) else each for each in _held(batch)]
    x = batch
    under_way: dict[str, Tensor] = {}
    try:
        for number, (layer, device) in enumerate(zip(model, devices, strict=True)):
            if number:
                x, under_way = moved((x, under_way), device)
            with weights_untouched(layer), Seeded(0, device):
                x, under_way = call(layer, x, under_way)
        pairs = zip(before, _held(batch), strict=True)
        return not all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
    except Exception:  # an entry is gone, say
        return True


def _held(batch: Tree) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(batch) if leaf is not None]


def _needs_edited(layer: nn.Module, x: Tree, incoming: dict[str, Tensor]) -> bool:
    """Return whether a backward fails if another forward has edited weights meanwhile."""
    x = tree_map(torch.clone, x)
    inputs = [tensor.requires_grad_() for tensor in differentiable(x)]
    with weights_untouched(layer), torch.enable_grad():
        outputs, _ = call(layer, x, incoming)
        call(layer, tree_map(torch.clone, x), incoming)
        ends = [tensor.sum() for tensor in differentiable(outputs) if tensor.requires_grad]
        try:
            torch.autograd.grad(ends, [*inputs, *trained(layer)], allow_unused=True)
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
    return False


def _set_attributes(model: nn.Module, changes: Sequence[Change]) -> Iterator[tuple[int, str, Any]]:
    modules = {name: (n, each) for n, (each, name) in enumerate(module_names(model).items())}
    for change in changes:
        number, module = modules[change.owner]
        if change.key in vars(module):  # and not a global variable
            value = vars(module)[change.key]
            # Tensors and containers that no later forward changes.
            fixed = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)
            yield number, change.key, fixed


def _require_tensors(number: int, layer: nn.Module, output: Tree) -> None:
    try:
        leaves(output)
    except TypeError as error:
        name = f"layer {number} ({type(layer).__name__})"
        raise TypeError(f"{name} returns something that cannot be passed on: {error}") from None


@contextmanager
def _explained(number: int, layer: nn.Module) -> Iterator[None]:
    name = f"layer {number} ({type(layer).__name__})"
    try:
        yield
    except Exception as error:
        if "more than 1 value per channel" in str(error):
            raise ValueError(
                f"{name} has a batch norm, and of a microbatch of one row there is no variance: "
                f"use fewer microbatches, or larger batches"
            ) from error
        require_plain_operators(error, name)
        error.add_note(f"(raised in {name}, tried on the first microbatch before training)")
        raise


def _warn_of_edits(names: Sequence[str]) -> None:
    if names:
        warn(
            f"the forward changes {', '.join(dict.fromkeys(names))}: in a pipeline it does so for "
            f"each microbatch, once more where it is recomputed, and in each weight version's copy "
            f"of the module, over processes in the workers' alone. Where the output depends on it, "
            f"keep it in a buffer that is edited in place; if it tells that weights have been "
            f"initialized, run the model on a batch before; what a hook is to tell you, keep in a "
            f"list that its function names, over threads"
        )


def _require_in_place(number: int, layer: nn.Module, rebound: Sequence[str]) -> None:
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
    is trained.  What memory alone limits (poolings, activation functions) counts nothing here.
    """
    sizes = [sum(p.numel() for p in trained(layer)) for layer in model]
    return [3.0 * f + size for f, size in zip(flops, sizes, strict=True)]
