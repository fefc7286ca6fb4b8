"""A batch for the loss, cut by rows: as a loop over its rows would read it."""

from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from pipekit import schedules
from pipekit.engine.batches import cut, cut_entry, has_one_a_row, parted
from pipekit.engine.runs.batch_reader import BatchReader
from tests.engine.examples import mlp, pipeline
from tests.engine.parametrized import first_over_processes

ROWS = 5
Boxes = namedtuple("Boxes", ["corners", "names"])

ONE_A_ROW = st.sampled_from(
    [
        lambda: torch.arange(ROWS),
        lambda: torch.arange(2.0 * ROWS).view(ROWS, 2),
        lambda: np.arange(ROWS),
        lambda: [torch.tensor(k) for k in range(ROWS)],
        lambda: [torch.zeros(k, 4) for k in range(ROWS)],
        lambda: tuple("abcde"),
        lambda: deque("abcde"),
        lambda: [{"boxes": torch.zeros(k, 4), "id": k} for k in range(ROWS)],
    ]
)
WHOLE = st.sampled_from(
    [lambda: torch.tensor(3.0), lambda: torch.arange(3), lambda: "abcde", lambda: 7, lambda: None]
)


@given(ONE_A_ROW, WHOLE, st.integers(1, ROWS))
def test_each_part_has_its_rows_of_each_entry(rows: Any, whole: Any, first: int) -> None:
    batch = {"rows": rows(), "whole": whole(), "nested": {"rows": rows(), "whole": (whole(),)}}
    sizes = [first, ROWS - first]
    seen = 0
    for part, size in zip(cut(batch, sizes), sizes, strict=True):
        for entries in (part, part["nested"]):
            assert len(entries["rows"]) == size
            for k in range(size):
                entry, expected = entries["rows"][k], batch["rows"][seen + k]
                assert str(entry) == str(expected)
        assert str(part["whole"]) == str(batch["whole"])
        assert str(part["nested"]["whole"]) == str((batch["whole"],))
        seen += size


@given(ONE_A_ROW, WHOLE)
def test_a_batch_is_whole_again(rows: Any, whole: Any) -> None:
    batch = {"rows": rows(), "boxes": Boxes(torch.zeros(2), ["a", whole()])}
    tensors, plain = parted(batch)
    assert all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(tensors))
    again = plain.joined(tensors) if plain else tensors
    assert str(again) == str(batch)


def test_a_structure_of_as_many_tensors_as_rows_is_cut_tensor_by_tensor() -> None:
    x, y = torch.zeros(2, 3), torch.ones(2)
    assert not has_one_a_row([x, y], 2)
    parts = cut_entry((x, y), [1, 1])
    assert [tuple(map(len, part)) for part in parts] == [(1, 1), (1, 1)]


def test_a_name_that_no_entry_has_is_warned_of() -> None:
    reader = BatchReader(mlp(6, 3), "x", rows={"weihgts": False, "y": True})
    with pytest.warns(UserWarning, match=r"'weihgts', and a batch has the entries \['x', 'y'\]"):
        reader.read({"x": torch.randn(4, 6), "y": torch.randn(4, 3)}, 2, 0)


def test_the_entries_of_a_batch_are_never_its_rows() -> None:
    batch = (torch.zeros(3, 2), [5, 6, 7], "label")
    assert [part[1:] for part in cut(batch, [2, 1])] == [([5, 6], "label"), ([7], "label")]


class TestTheUserSays:
    def test_which_entries_are_no_rows(self) -> None:
        batch = {"x": torch.zeros(4), "table": torch.ones(4)}
        assert [len(part["table"]) for part in cut(batch, [2, 2], {"table": False})] == [4, 4]

    def test_which_entries_are_rows(self) -> None:
        with pytest.raises(ValueError, match=r"'y'\] does not have one element for each of 4"):
            cut({"y": torch.zeros(3)}, [2, 2], {"y": True})


def zipped(output: Any, batch: Any) -> Any:
    pairs = zip(output, batch["y"], strict=True)
    return sum(F.cross_entropy(row, torch.as_tensor(label)) for row, label in pairs) / len(output)


@first_over_processes("labels", [list, deque, np.array, pd.Series, torch.tensor])
def test_labels_in_any_container_train_the_same(labels: Callable[..., Any], transport: str) -> None:
    """The table for the loss has as many entries as rows, by chance."""

    def losses(labels: Callable[..., Any], transport: str) -> list[float]:
        torch.manual_seed(0)
        batch = {"x": torch.randn(4, 8), "y": labels([0, 2, 1, 2]), "table": torch.arange(4.0)}
        how: dict[str, Any] = {"loss": with_table, "inputs": "x", "rows": {"table": False}}
        pipe = pipeline(mlp(8, 8, 3), schedules.flush(2, 2), transport=transport, **how)
        losses = pipe.train([batch] * 2).losses
        pipe.close()
        return losses

    assert losses(labels, transport) == losses(torch.tensor, "threads")


def with_table(output: Any, batch: Any) -> Any:
    assert len(batch["table"]) == 4
    return zipped(output, batch) * batch["table"].mean()


@pytest.mark.parametrize("target", [[5, 6, 7, 8], [torch.zeros(k) for k in range(4)], None])
def test_the_target_of_a_pair_may_be_a_list_of_rows_or_nothing(target: Any) -> None:
    seen = []

    def loss(output: Any, target: Any) -> Any:
        seen.append(target)
        return output.mean()

    pipe = pipeline(mlp(2, 2), schedules.gpipe(1, 2), loss=loss)
    pipe.train([(torch.zeros(4, 2), target)])
    expected = [None, None] if target is None else [target[:2], target[2:]]
    assert str(seen) == str(expected)
