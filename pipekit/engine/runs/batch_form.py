"""The form of a batch, which may differ from that of the one before, and tensors without rows."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


class Form(NamedTuple):
    """The form of a batch.

    Attributes:
        number: of the batch.
        outline: its containers, and the types of its tensors; no sizes.
        sized: of a batch that the loss gets whole, which entries have one element a row.
    """

    number: int
    outline: str
    sized: Mapping[Any, bool]

    @classmethod
    def of(cls, batch: Any, number: int, rows: int, is_pair: bool) -> "Form":
        """Return the form of a batch of so many rows."""
        named = {} if is_pair else _named(batch)
        kinds = (Tensor, np.ndarray, list, tuple)
        sized = {n: _length(e) == rows for n, e in named.items() if isinstance(e, kinds)}
        return cls(number, _outline(batch), sized)

    def differs(self, before: "Form") -> str | None:
        """Return what is said of another form than that of the batch before, or None."""
        if self.outline == before.outline:
            return None
        return (
            f"(batch {self.number} has another form than batch {before.number}: {self.outline} "
            f"after {before.outline}; of a pair the loss gets the target, of all others the batch)"
        )

    def warn_of_rows(self, before: "Form", told: set[Any]) -> None:
        """Warn, once an entry, if it has one element a row in one batch and not in the other."""
        for name, is_cut in self.sized.items():
            if name not in told and before.sized.get(name, is_cut) != is_cut:
                told.add(name)
                one, other = (self, before) if is_cut else (before, self)
                warnings.warn(
                    f"the batch[{name!r}] has one element a row in batch {one.number} alone, where "
                    f"it is cut into microbatches, and not in batch {other.number}: if these are "
                    f"no rows, say Execution(rows={{{name!r}: False}})",
                    stacklevel=2,
                )


def _named(batch: Any) -> Mapping[Any, Any]:
    if isinstance(batch, Mapping):
        return batch
    return dict(enumerate(batch)) if isinstance(batch, (tuple, list)) else {}


def _length(entry: Any) -> int | None:
    return None if isinstance(entry, (Tensor, np.ndarray)) and not entry.ndim else len(entry)


def _outline(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"{tree.ndim}d {str(tree.dtype).removeprefix('torch.')}"
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{key}: {_outline(item)}' for key, item in tree.items())}}}"
    if isinstance(tree, tuple):
        return f"({', '.join(map(_outline, tree))})"
    return type(tree).__name__


def require_cuttable(tree: Any, rows: int | None = None) -> None:
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
