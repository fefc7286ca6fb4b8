"""What each layer of a model holds, saves and does, found by one forward and backward."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from pipekit.layers.module_state import trained
from pipekit.layers.skips import Name, require_matched
from pipekit.partition.partition import find_ties
from pipekit.profiling.layer_passes import crossing, cut_forwards, run_backward
from pipekit.profiling.layer_profile import LayerProfile, SkipProfile, TieProfile
from pipekit.profiling.work import Work, counted_work
from pipekit.trees import Tree, differentiable, leaves, tree_bytes


class SavedStorages:
    """Counts each storage once, in the layer that made it, whatever views and layers save of it.

    Tensors ``apart`` do not count, because they are there anyway.  A weak reference keeps a
    storage's identity, not its memory: no later one is taken for it.
    """

    def __init__(self, apart: Iterable[Tensor]) -> None:
        self._apart = {storage_of(t) for t in apart}
        self._made: dict[StorageWeakRef, tuple[int, int]] = {}  # the layer, and the bytes
        self._packed: dict[StorageWeakRef, int] = {}
        self._needed: set[StorageWeakRef] = set()
        self.saved_bytes: Counter[int] = Counter()

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves; a pack hook of ``saved_tensors_hooks``."""
        self._packed[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def end_layer(self, number: int, outputs: Iterable[Tensor]) -> None:
        """Say that layer ``number`` has run, while its graph is alive, and what it passes on."""
        for storage, size in self._packed.items():
            # A part of the graph that leads to no output is gone by now, with what it saved.
            if storage not in self._apart and not storage.expired():
                layer, made = self._made.setdefault(storage, (number, size))
                if storage not in self._needed:
                    self._needed.add(storage)
                    self.saved_bytes[layer] += made
        self._packed.clear()
        for tensor in outputs:
            self._made.setdefault(storage_of(tensor), (number, tensor.untyped_storage().nbytes()))

    def live_on(self, storages: Iterable[StorageWeakRef]) -> bool:
        """Return whether all of them live until a backward, or are there anyway."""
        return all(storage in self._needed or storage in self._apart for storage in storages)


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference to a tensor's memory."""
    return StorageWeakRef(tensor.untyped_storage())


class LayerSizes(NamedTuple):
    """What one layer holds and does for one microbatch."""

    profile: LayerProfile  # its bytes and forward FLOPs; the seconds are still 0
    edits_input: bool  # as ReLU(inplace=True) does
    forward: Work
    backward: Work  # where there are no gradients yet to add to


class ModelSizes(NamedTuple):
    """What a model holds and does for one microbatch."""

    layers: list[LayerSizes]
    skips: tuple[SkipProfile, ...]
    ties: tuple[TieProfile, ...]


class _Passed(NamedTuple):
    storages: list[StorageWeakRef]
    bytes: int

    @classmethod
    def of(cls, x: Tree) -> "_Passed":
        return cls([storage_of(t) for t in leaves(x)], tree_bytes(x))


def sizes(model: nn.Sequential, x: Tree, dtype: torch.dtype | None = None) -> ModelSizes:
    """Run ``x`` through a model once, layer by layer, and return what each layer holds and does.

    Forwards compute in ``dtype`` where that is safe; None: as they come.  Gradients are added,
    buffers and perhaps ``x`` are edited: pass copies.  Errors name the layer that fails.
    """
    require_matched(model)
    storages = SavedStorages([*model.parameters(), *model.buffers(), *leaves(x)])
    names, edits, outputs = list[str](), list[bool](), list[_Passed]()
    forward, backward = dict[int, Work](), dict[int, Work]()
    stashed: dict[Name, _Passed] = {}

    @contextmanager
    def counted(number: int) -> Iterator[None]:
        with saved_tensors_hooks(storages.pack, lambda t: t), counted_work() as forward[number]:
            yield

    passes = cut_forwards(model, x, dtype, lambda _: True, counted)
    for number, (name, entered, passed) in enumerate(passes):
        storages.end_layer(number, leaves(passed))
        ones = [torch.ones_like(t) for t in differentiable(passed)]
        with counted_work() as backward[number]:
            run_backward(name, passed, ones)
        x, leaving = passed
        names.append(name)
        edits.append(entered.edited)
        outputs.append(_Passed.of(x))
        stashed |= {name: _Passed.of(tensor) for name, tensor in leaving.items()}
    held = _held(model)
    layers = [
        LayerSizes(
            LayerProfile(
                name,
                forward_s=0,
                backward_s=0,
                output_bytes=outputs[number].bytes,
                parameter_bytes=held[number][0],
                saved_bytes=storages.saved_bytes[number],
                saves_output=storages.live_on(outputs[number].storages),
                buffer_bytes=held[number][1],
                flops=forward[number].flops,
            ),
            edits[number],
            forward[number],
            backward[number],
        )
        for number, name in enumerate(names)
    ]
    skips = tuple(
        SkipProfile(*skip, stashed[skip.name].bytes, storages.live_on(stashed[skip.name].storages))
        for skip in crossing(model)
    )
    return ModelSizes(layers, skips, _ties(model))


def rows_of(x: Tree) -> int:
    """Return the leading dimension of the structure's first tensor; refuse one without any."""
    tensors = leaves(x)
    if not tensors or not tensors[0].ndim:
        raise ValueError("the sample needs a leading dimension of rows: pass one microbatch")
    return tensors[0].shape[0]


def dtype_of(model: nn.Module, x: Tree) -> str:
    """Return the dtype of the first floating-point tensor, say "float32"; "" if there is none."""
    tensors = [*model.parameters(), *leaves(x)]
    return next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "")


def _ties(model: nn.Sequential) -> tuple[TieProfile, ...]:
    """Return the trained parameters that layers share, those of the same layers as one."""
    found = ((tie, trained(model[tie.stages[0]])) for tie in find_ties(model))
    return tuple(
        TieProfile(tie.stages, sum(own[place].nbytes for place in tie.places[0]))
        for tie, own in found
    )


def _held(model: nn.Sequential) -> list[tuple[int, int]]:
    """Return bytes of trained parameters and of other tensors; shared ones in their first layer."""
    known: set[int] = set()
    held = []
    for layer in model:
        tensors = [t for t in [*layer.parameters(), *layer.buffers()] if id(t) not in known]
        known.update(map(id, tensors))
        trained = sum(t.nbytes for t in tensors if t.requires_grad)
        held.append((trained, sum(t.nbytes for t in tensors) - trained))
    return held
