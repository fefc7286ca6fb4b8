"""Batches for a model that runs to be looked at, and that is left as it was."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pipekit.devices import random_states_put_back
from pipekit.layers.edited_tensors import weights_untouched
from pipekit.layers.module_state import buffers_untouched, modes_put_back
from pipekit.layers.python_state import PythonState, module_names
from pipekit.layers.seeded import drawn_since, numbers_so_far
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import leaves, tensors

# What PyTorch says if a model lets an input require gradients that comes with them.
LEAVES_ALONE = "you can only change requires_grad flags of leaf variables"


def call(model: nn.Module, batch: Any) -> Any:
    """Return ``model``'s output: a dict holds keyword arguments, a tuple or list positional."""
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def rows_of(batch: Any) -> int:
    """Return how many rows a batch has: the first dimension that most of its tensors have."""
    for leaf in leaves(batch):
        if any(isinstance(each, Tensor) for each in getattr(leaf, "__dict__", {}).values()):
            raise NotRecordable(
                f"the example holds a {type(leaf).__name__} with tensors: pass them in tuples, "
                f"lists or dicts"
            )
    lengths = Counter(len(tensor) for tensor in tensors(batch) if tensor.dim())
    if not lengths:
        raise NotRecordable(
            f"the example, a {type(batch).__name__}, holds no tensor [rows, ...]: pass a batch as "
            f"the model's forward takes it, of a loader the first one, of arrays "
            f"torch.as_tensor(array)"
        )
    rows = lengths.most_common(1)[0][0]
    if rows < 2:
        raise NotRecordable(
            f"the example batch has {'one row' if rows else 'no rows'}, and what has one row "
            f"cannot be told from what has one for every row: give an example of at least two rows"
        )
    return rows


def row_places(batch: Any) -> list[tuple[int, int]]:
    """Return which tensors have rows; those with another first dimension belong to all rows."""
    known = rows_of(batch)
    return [(n, 0) for n, each in enumerate(tensors(batch)) if each.dim() and len(each) == known]


def with_rows(batch: Any, rows: int) -> Any:
    """Return a batch of other rows."""
    return resized(batch, dict.fromkeys(row_places(batch), rows))


def resized(batch: Any, lengths: Mapping[tuple[int, int], int]) -> Any:
    """Return a batch with other lengths by (tensor, dimension): rows and so on, taken in turn.

    A first dimension of another length begins with its second row.  Floating-point numbers of
    tensors that have another shape are scaled, so that what a forward computes of them differs.
    """
    numbers = count()

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        number, chosen = next(numbers), leaf.detach().clone()
        for dimension, known in enumerate(leaf.shape):
            length = lengths.get((number, dimension), known)
            if length != known:
                places = torch.arange(length, device=leaf.device) + (dimension == 0)
                chosen = chosen.index_select(dimension, places % known)
        is_other = chosen.is_floating_point() and chosen.shape != leaf.shape
        return chosen * 0.75 if is_other else chosen

    return tree_map(changed, batch)


def with_masks(batch: Any, padded: bool) -> Any:
    """Return a batch whose masks hide the last third of every other row, or nothing.

    Masks are tensors of two dimensions or more of zeros and ones, some of them ones.
    """

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() < 2 or leaf.is_complex():
            return leaf
        if not leaf.any() or not ((leaf == 0) | (leaf == 1)).all():
            return leaf
        mask = torch.ones_like(leaf)
        if padded:
            mask[::2, ..., -(-2 * leaf.shape[-1] // 3) :] = 0
        return mask

    return tree_map(changed, batch)


def copied(batch: Any, tracked: list[Tensor] | None = None) -> Any:
    """Return a copy of the batch, as a data loader gives it.

    With ``tracked``, floating-point tensors track gradients.  They are not leaves, so that a model
    may edit them in place; the list gets the leaf of each.
    """

    def copy_of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        made = leaf.detach().clone()
        if tracked is None or not made.is_floating_point():
            return made
        tracked.append(made.requires_grad_())
        return made.clone()

    return tree_map(copy_of, batch)


def device_of(model: nn.Module) -> torch.device:
    """Return where the first tensor of a model lies."""
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules, and the state of the random generators."""
    with random_states_put_back(device_of(model)), modes_put_back(model):
        yield


def hooks_of(model: nn.Module) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    """Return the forward hooks of all modules, each with a copy as they are now."""
    held = ((m._forward_hooks, m._forward_pre_hooks) for m in model.modules())
    return [(hooks, hooks.copy()) for pair in held for hooks in pair]


def first_forward(model: nn.Module, batch: Any) -> None:
    """Let a forward leave what it keeps in Python, but neither buffers nor weights."""
    with buffers_untouched(model), weights_untouched(model), torch.no_grad():
        call(model, copied(batch))


@contextmanager
def drawing_from_torch() -> Iterator[None]:
    """Refuse a forward that draws from the generator of Python or NumPy: stages have no order."""
    before = numbers_so_far()
    yield
    if drawn := drawn_since(before):
        source = "Python's random" if "Python" in drawn else "NumPy's generator"
        raise NotRecordable(
            f"the forward draws from {source}, whose numbers stages would not draw alike: draw by "
            f"torch, torch.rand(()) say, within a block, or leave it out (in transformers: "
            f"config.layerdrop = 0 or config.apply_spec_augment = False)"
        )


@contextmanager
def stateless(outer: Iterable[nn.Module], model: nn.Module) -> Iterator[None]:
    """Refuse a forward that keeps something in its module, where stages would not find it."""
    names = module_names(model)
    recorded = [module for module in names if module in {*outer}]

    def tensors_now() -> dict[tuple[str, str], Tensor | None]:
        held = ((each, {**each._parameters, **each._buffers}) for each in recorded)
        return {(names[each], key): t for each, own in held for key, t in own.items()}

    state, before = PythonState.of(model, recorded), tensors_now()
    yield
    changed = [(change.owner, change.key) for change in state.changes()]
    changed += [place for place, each in tensors_now().items() if before.get(place) is not each]
    for name, key in changed:
        raise NotRecordable(
            f"the forward of {name} changes {key!r}, which stages would not do: keep it in a "
            f"buffer that is edited in place, or put what changes and what reads it into one block "
            f"by blocks=[...]"
        )
