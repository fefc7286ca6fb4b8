"""Reads the user's batches: the entries for the model and for the loss, and the rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from pipekit.engine.batches import Batch, has_one_a_row, is_array, part_sizes
from pipekit.engine.config import Start
from pipekit.engine.options import Inputs
from pipekit.host.user_frames import warn
from pipekit.layers.python_state import PLAIN
from pipekit.partition.recording.stage import RecordedStage
from pipekit.trees import Tree, leaves, tensors_in
from pipekit.units import plural

_LOOKED_AT = 100
"""Batches at each end of a list that are looked at before a run: all would take seconds."""


class Form(NamedTuple):
    """The form of a batch."""

    number: int  # of the batch
    outline: str  # its containers, and the types of its tensors; no sizes
    sized: Mapping[Any, bool]  # of one that the loss gets whole: which entries are one a row


def _sized(named: Mapping[Any, Any], rows: int) -> dict[Any, bool]:
    """Return which entries of a batch have one element for each of so many rows."""
    some = {n: e for n, e in named.items() if isinstance(e, (Tensor, np.ndarray, list, tuple))}
    return {n: getattr(e, "ndim", True) > 0 and len(e) == rows for n, e in some.items()}


def _outline(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"{tree.ndim}d {str(tree.dtype).removeprefix('torch.')}"
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{key}: {_outline(item)}' for key, item in tree.items())}}}"
    if isinstance(tree, tuple):
        return f"({', '.join(map(_outline, tree))})"
    return type(tree).__name__


class BatchReader:
    """Reads batches for one model, as :meth:`pipekit.Pipeline.train` says.

    ``inputs`` are the entries for the model; None: those with which :func:`pipekit.stages` recorded
    it, else the whole dict, or the first of a tuple.  With ``fewer`` a batch may have fewer rows
    than microbatches; ``rows`` says which entries are cut, as far as the user has said it.
    """

    def __init__(
        self,
        model: nn.Sequential,
        inputs: Inputs = None,
        fewer: bool = False,
        rows: Mapping[Any, bool] | None = None,
    ) -> None:
        self._fewer, self._said = fewer, dict(rows or {})
        self._before: Form | None = None
        self._told: set[Any] = {*self._said}
        self._unseen = {*self._said}  # until the first batch
        self.changed: str | None = None  # the first batch of a run that has another form, in words
        self.paired = False  # whether an input to predict was in a list, maybe with its target
        self._select = inputs if callable(inputs) else None
        self._names = None if callable(inputs) else inputs
        self._model_input = model[0].model_input if isinstance(model[0], RecordedStage) else None

    def read(self, batch: Any, parts: int, number: int) -> Batch:
        """Check a user's batch."""
        if isinstance(batch, Mapping):
            batch = dict(batch)
        elif not isinstance(batch, (tuple, list)) or not batch:
            raise ValueError(
                f"batch {number}, of type {type(batch).__name__}, is not a pair (input, target), a "
                f"longer tuple, or a dict; put a tensor alone into a tuple, (x,), and a batch "
                f"alone into a list, [batch]; vars(...) makes a dict of an object's fields"
            )
        is_pair = not isinstance(batch, dict) and len(batch) == 2 and not self._select
        taken = self._tensors_of(batch[0]) if is_pair else self.input(batch)
        named = batch if isinstance(batch, dict) else dict(enumerate(batch))
        if unknown := [name for name in self._unseen if name not in named]:
            warn(
                f"Execution(rows=...) names {', '.join(map(repr, unknown))}, and a batch has the "
                f"entries {[*named]}: name these"
            )
        self._unseen.clear()
        cut = [entry for name, entry in named.items() if self._said.get(name, True)]
        rows = _rows(taken, cut, number)
        target = batch[1] if is_pair else batch
        if is_pair or parts > 1:
            _require_stacked(taken, [target] if is_pair else named.values(), rows, number)
        if is_pair:
            tensors = [*leaves(taken), *([] if target is None else _with_rows(target, rows))]
            if len({len(tensor) if tensor.ndim else None for tensor in tensors}) > 1:
                raise ValueError(
                    f"batch {number}: all tensors of input and target must have the same first "
                    f"dimension, the rows; here they are {[tuple(t.shape) for t in tensors]} (what "
                    f"has no rows may stand in a dict, or in a tuple of more than two)"
                )
        self._compare(Form(number, _outline(batch), {} if is_pair else _sized(named, rows)))
        read = _batch(taken, target, rows, parts, number, self._fewer)
        if is_pair:
            return read
        held = taken if isinstance(taken, dict) else range(isinstance(taken, tuple) and len(taken))
        kept = [name for name, is_cut in self._said.items() if not is_cut and name in held]
        return read._replace(said=self._said, kept=kept)

    def _compare(self, form: Form) -> None:
        """Look at what has changed since the batch before; warn of entries that are rows once."""
        before, self._before = self._before, form
        if before is None or before.number != form.number - 1:
            self.changed = None
            return
        if form.outline != before.outline and not self.changed:
            self.changed = (
                f"(batch {form.number} has another form than batch {before.number}: "
                f"{form.outline} after {before.outline}; of a pair the loss gets the target, of "
                f"all others the batch)"
            )
        for name, is_cut in form.sized.items():
            if name not in self._told and before.sized.get(name, is_cut) != is_cut:
                self._told.add(name)
                one, other = (form, before) if is_cut else (before, form)
                warn(
                    f"the batch[{name!r}] has one element a row in batch {one.number} alone, where "
                    f"it is cut into microbatches, and not in batch {other.number}: if these are "
                    f"not rows, say Execution(rows={{{name!r}: False}})"
                )

    def unlabelled(self, inputs: Any, parts: int, number: int) -> Batch:
        """Check a user's input for a prediction, or a dict that holds it."""
        held = isinstance(inputs, Mapping) or self._select is not None
        self.paired = isinstance(inputs, (tuple, list)) and len(inputs) <= 2
        taken = self.input(inputs) if held else self._tensors_of(inputs)
        return _batch(taken, (), _rows(taken, (), number), parts, number)

    def input(self, batch: Any) -> Tree:
        """Return the model's entries of a batch."""
        if self._select:
            return self._tensors_of(self._select(batch))
        if self._model_input and (self._names is None or not isinstance(batch, Mapping)):
            return self._tensors_of(self._model_input.select(batch))
        if not isinstance(batch, Mapping):
            if self._names is not None:
                raise ValueError(
                    f"inputs={self._names!r} names entries, and those of a tuple have no names: "
                    f"give batches that are dicts, or inputs=lambda batch: batch[0]"
                )
            return batch[0]
        one = self._names if isinstance(self._names, str) else None
        names = [one] if one else batch if self._names is None else self._names
        taken = {name: batch[name] for name in names if name in batch}
        if not taken:
            raise ValueError(
                f"a batch has the entries {[*batch]} and the model takes {[*names]}: say by "
                f"inputs= which of the batch's entries these are"
            )
        return self._tensors_of(taken[one] if one else taken)

    def _tensors_of(self, taken: Any) -> Tree:
        return self._model_input.tensors_of(taken) if self._model_input else taken

    def require_long(self, batches: Any, start: Start, steps: int | None) -> None:
        """Raise ValueError if a batch of a list or a data loader is known to have too few rows."""
        if self._fewer:
            return
        schedule, offset = start.schedule, start.offset
        come_round = len(schedule.batch_stops) or len(schedule)
        parts = [*map(len, islice(schedule.each_batch(), come_round))]
        chunks = schedule.chunks
        if isinstance(batches, (list, tuple)) and not self._select:
            numbers = range(offset, min(len(batches), steps or len(batches)))
            for number in (*numbers[:_LOOKED_AT], *numbers[_LOOKED_AT:][-_LOOKED_AT:]):
                self.read(batches[number], parts[(number - offset) % len(parts)] // chunks, number)
        elif (
            isinstance(batches, DataLoader)
            and not isinstance(batches.dataset, IterableDataset)
            and type(batches.batch_sampler) is BatchSampler
        ):
            sampler = batches.batch_sampler
            last = len(batches) - 1
            if not sampler.drop_last and offset <= last < (steps or len(batches)):
                rows = len(cast(Sized, sampler.sampler)) - last * sampler.batch_size
                _require_rows(rows, parts[(last - offset) % len(parts)] // chunks, last)


def _require_rows(rows: int, parts: int, number: int) -> None:
    if rows == 0:
        raise ValueError(f"batch {number} is empty: leave out batches without rows")
    if rows < parts:
        raise ValueError(
            f"batch {number} has {plural(rows, 'row')} for {parts} microbatches: use larger "
            f"batches, fewer microbatches, drop the last batch (drop_last=True), or train on it in "
            f"fewer, by pk.Execution(short_batches='fewer')"
        )


def _require_stacked(taken: Tree, others: Iterable[Any], rows: int, number: int) -> None:
    """Raise ValueError for a list of rows, as of images, if no other entry has its tensors' rows.

    Some other entry has as many elements as the list.
    """
    held = [*taken.values()] if isinstance(taken, dict) else [taken]
    several = [e for e in others if e is not taken and not any(e is each for each in held)]
    if any({*map(len, filter(Tensor.dim, tensors_in(e)))} == {rows} for e in several):
        return
    lengths = {len(e) for e in several if getattr(e, "ndim", isinstance(e, Sized))} - {rows}
    if found := [len(each) for each in held if isinstance(each, list) and len(each) in lengths]:
        raise ValueError(
            f"batch {number}: the model gets a list of {found[0]} tensors, one a row, and "
            f"microbatches are cut from tensors [rows, ...]: stack them, padded if their sizes "
            f"differ, in the loader, or by Execution(inputs=lambda batch: torch.stack(...))"
        )


def _batch(
    taken: Tree, target: Tree, rows: int, parts: int, number: int, fewer: bool = False
) -> Batch:
    _require_rows(rows, 1 if fewer else parts, number)
    shapes = tuple(tuple(t.shape[1:] if has_one_a_row(t, rows) else t.shape) for t in leaves(taken))
    return Batch(taken, target, rows, shapes, part_sizes(rows, parts))


def _rows(taken: Tree, cut: Sequence[Any], number: int) -> int:
    """Return the first dimension of most tensors of the model's input.

    Of a first batch, all that is ``cut`` must have rows.
    """
    if number == 0:
        _require_cuttable([taken, cut])
    counts = Counter(len(tensor) for tensor in leaves(taken) if tensor.dim())
    if not counts:
        raise ValueError(
            f"batch {number}: no tensor that the model takes has a first dimension, the rows"
        )
    rows = counts.most_common(1)[0][0]
    if number == 0:
        _require_cuttable([taken, cut], rows)
    return rows


def _with_rows(target: Any, rows: int) -> list[Any]:
    """Return the tensors and arrays of a target; lists may have an element a row in their place.

    Numbers and texts beside them have no rows, and stay whole: mixup's target is two tensors of
    labels and a number.
    """
    if is_array(target):
        return [target]
    if has_one_a_row(target, rows):
        return []
    if not isinstance(target, (Mapping, tuple, list)):
        return leaves(target)
    entries = target.values() if isinstance(target, Mapping) else target
    several = [e for e in entries if not isinstance(e, PLAIN) and getattr(e, "ndim", True)]
    return [t for each in several for t in _with_rows(each, rows)] if several else leaves(target)


def _require_cuttable(tree: Any, rows: int | None = None) -> None:
    """Raise TypeError for nested and packed tensors and, given the rows, other layouts of them."""
    for leaf in pytree.tree_leaves(tree, is_leaf=lambda item: isinstance(item, PackedSequence)):
        if isinstance(leaf, PackedSequence):
            what, instead = "PackedSequence", "padded rows and their lengths, and pack in the model"
        elif isinstance(leaf, Tensor) and leaf.is_nested:
            what, instead = "nested tensor", "torch.nested.to_padded_tensor(x, 0.0) and a mask"
        elif rows and isinstance(leaf, Tensor) and leaf.layout is not torch.strided:
            if leaf.ndim and len(leaf) != rows:
                continue
            what, instead = f"tensor of {leaf.layout}", "x.to_dense()"
        else:
            continue
        raise TypeError(f"a {what} cannot be cut into microbatches by rows: pass {instead}")
