"""Buckets: every gradient into one, in the backward's order, and out again as it was."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipekit import bucketing
from pipekit.bucketing import BUCKET_BYTES
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Bucket, parameter_buckets
from tests.engine.examples import mlp, sgd

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
shapes = st.lists(st.integers(0, 3), max_size=3)


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def numbered(given: Sequence[nn.Parameter]) -> dict[int, nn.Parameter]:
    return dict(enumerate(given))


def numbers_of(buckets: list[Bucket]) -> list[list[int]]:
    return [list(bucket.parameters) for bucket in buckets]


# --- Which parameters share one ------------------------------------------------------------------


def test_by_default_they_are_those_of_distributed_data_parallel() -> None:
    """25 MB; the paper's VGG16 has one for its large layers, few for the others."""
    two = BUCKET_BYTES // 8
    assert numbers_of(parameter_buckets(numbered(parameters(two, two)))) == [[1, 0]]
    assert numbers_of(parameter_buckets(numbered(parameters(two, two + 1)))) == [[1], [0]]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(DTYPES)), max_size=12), st.integers(1, 60)
)
def test_every_parameter_is_in_one_in_reverse_order_and_none_is_too_large(
    wanted: list[tuple[int, torch.dtype]], largest: int
) -> None:
    given = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucketing, "BUCKET_BYTES", largest)
        found = numbers_of(parameter_buckets(numbered(given)))
    assert [n for numbers in found for n in numbers] == list(reversed(range(len(given))))
    for numbers in found:
        assert len({given[n].dtype for n in numbers}) == 1
        assert len(numbers) == 1 or sum(given[n].nbytes for n in numbers) <= largest
    for one, after in pairwise(found):
        full = sum(given[n].nbytes for n in one) + given[after[0]].nbytes > largest
        assert full or given[one[0]].dtype != given[after[0]].dtype


# --- Their content -------------------------------------------------------------------------------


def bucket_of(like: list[Tensor], first: int = 0) -> Bucket:
    return Bucket(range(first, first + len(like)), like)


@given(st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=5), st.sampled_from(DTYPES))
def test_gradients_come_out_as_they_went_in(
    wanted: list[tuple[list[int], bool]], dtype: torch.dtype
) -> None:
    like = [torch.zeros(shape, dtype=dtype) for shape, _ in wanted]
    gradients = [torch.randn(shape).to(dtype) if present else None for shape, present in wanted]
    bucket = bucket_of(like, first=7)
    content = bucket.flat(gradients)
    assert content.numbers.dtype == dtype
    assert content.numbers.shape == (sum(tensor.numel() for tensor in like),)
    assert content.present.tolist() == [int(present) for _, present in wanted]
    out = dict(bucket.gradients(content))
    assert list(out) == list(bucket.parameters)
    for got, gradient in zip(out.values(), gradients, strict=True):
        if gradient is None:
            assert got is None
        else:
            assert got is not None
            assert torch.equal(got, gradient)


def test_gradients_of_any_strides() -> None:
    like, gradient = torch.zeros(2, 3), torch.arange(6.0).view(3, 2).t()
    content = bucket_of([like]).flat([gradient])
    assert content.numbers.tolist() == [0, 2, 4, 1, 3, 5]
    ((_, got),) = bucket_of([like]).gradients(content)
    assert got is not None
    assert torch.equal(got, gradient)


# --- From a stage's weight versions --------------------------------------------------------------


@pytest.mark.parametrize("update", [1, 2])
def test_gradients_of_another_update_stay(update: int) -> None:
    """One buffer, two updates: those of the first were set aside when the second began."""
    versions = WeightVersions(mlp(2, 1), sgd, None)
    versions.prepare(1)
    for number in (1, 2):
        versions.accumulate(0, number)
        torch.autograd.backward(versions.modules[0](torch.full((1, 2), float(number))).sum())
    (bucket,) = versions.buckets()
    content = bucket.flat(versions.take(update, bucket.parameters))
    assert content.numbers.tolist() == [1, update, update]
    other = bucket.flat(versions.take(3 - update, bucket.parameters))
    assert other.numbers.tolist() == [1, 3 - update, 3 - update]
