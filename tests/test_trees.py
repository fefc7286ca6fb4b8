"""Structures of tensors."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipekit.trees import differentiable, leaves, refill, tree_map


class Pair(NamedTuple):
    one: Any
    two: Any


numbers = st.integers(0, 99).map(float).map(torch.tensor)
trees = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def plain(tree: Any) -> Any:
    """The same structure, of numbers and with the types spelt out."""
    if isinstance(tree, torch.Tensor):
        return tree.item()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return type(tree).__name__, [plain(item) for item in tree]


@given(trees)
def test_map_keeps_the_structure(tree: Any) -> None:
    assert plain(tree_map(torch.clone, tree)) == plain(tree)
    doubled = tree_map(lambda t: t * 2, tree)
    assert [t.item() for t in leaves(doubled)] == [2 * t.item() for t in leaves(tree)]


@given(trees)
def test_refill_puts_tensors_back_in_order(tree: Any) -> None:
    tensors = leaves(tree)
    assert plain(refill(tree, tensors)) == plain(tree)
    other = [torch.tensor(float(n)) for n in range(len(tensors))]
    assert [t.item() for t in leaves(refill(tree, other))] == list(range(len(tensors)))


def test_gradients_flow_through_floating_and_complex_tensors() -> None:
    kinds = [torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64]
    tree = tuple(torch.zeros(1, dtype=kind) for kind in kinds)
    assert [t.dtype for t in differentiable(tree)] == [kinds[0], kinds[2], kinds[4]]


AS_TENSOR = r"torch\.as_tensor\(\.\.\.\) makes a tensor of an array"


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (np.zeros(2), AS_TENSOR),
        ([[1.0, 2.0]], AS_TENSOR),
        ({"x": True}, AS_TENSOR),
        ([torch.zeros(1), 2], AS_TENSOR),
        ("text", "not str: a tokenizer"),
    ],
)
def test_anything_else_is_refused(wrong: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=f"must pass tensors, or tuples, .*{remedy}"):
        leaves(wrong)
