"""Wait-free sums (PipeDream, section 2.1): what starts when, in which order, and what comes of it.

The exchange is a fake that notes what it is asked to sum; nothing is timed.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from pipekit import bucketing
from pipekit.engine.comm_thread import CommThread
from pipekit.engine.transport import FlatBucket
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.reducer import Reducer, SharedStage
from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Gradients
from pipekit.schedules.lowering.recurring import Recurring
from pipekit.schedules.lowering.sums import Sum
from tests.engine.examples import in_backward, mlp, sgd

CPU = torch.device("cpu")
ME, OTHER = 3, 5
LIMIT_S = 100


class Alone(AllReduce):
    """An exchange with nobody: what is summed comes back, plus what the others "sent"."""

    def __init__(self, others: float = 0.0) -> None:
        self.rounds: list[ReduceKey] = []
        self.contents: list[list[float]] = []
        self._others = others
        self.arrived = threading.Semaphore(0)

    def sum(self, round: ReduceKey, content: FlatBucket) -> FlatBucket:
        self.rounds.append(round)
        self.contents.append(content.numbers.tolist())
        self.arrived.release()
        if OTHER in round.contributors:
            return FlatBucket(content.numbers + self._others, torch.ones_like(content.present))
        return content

    @property
    def order(self) -> list[int]:
        return [round.number for round in self.rounds]


@pytest.fixture(autouse=True)
def _a_bucket_for_each_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)


@contextmanager
def reducing(
    versions: WeightVersions, contributors: Sequence[Sequence[int]], exchange: Alone
) -> Iterator[Reducer]:
    lane = CommThread("lane of a test", CPU, 1)
    each = enumerate(contributors, start=1)
    sums = Recurring(tuple(Sum(tuple(who), batches=1, end=end) for end, who in each))
    order = [(7, update) for update, _ in enumerate(contributors, start=1)]
    stage = SharedStage(versions, sums, exchange)
    reducer = Reducer(ME, {7: stage}, order, lane, CPU)
    try:
        yield reducer
    finally:
        reducer.close()
        lane.close()


def prepared(layers: nn.Sequential, buffers: int = 1) -> WeightVersions:
    versions = WeightVersions(layers, sgd, None)
    versions.prepare(buffers)
    return versions


def backward(versions: WeightVersions, update: int, x: float = 1.0, buffer: int = 0) -> None:
    versions.accumulate(buffer, update)
    torch.autograd.backward(versions.modules[buffer](torch.full((1, 6), x)).sum())


def last_backward(
    reducer: Reducer, versions: WeightVersions, update: int, x: float = 1.0, buffer: int = 0
) -> None:
    with reducer.last_backward(7, update):
        backward(versions, update, x, buffer)


def expected(layers: nn.Sequential, *inputs: float) -> Gradients:
    """The gradients of some inputs' sum, on a model of their own."""
    for x in inputs:
        torch.autograd.backward(layers(torch.full((1, 6), x)).sum())
    return [p.grad for p in layers.parameters()]


def assert_close(found: Gradients, wanted: Gradients) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


# --- Wait-free -----------------------------------------------------------------------------------


class Gate(nn.Module):
    """In the backward, wait until the exchange has been asked for something."""

    exchange: Alone

    def forward(self, x: Tensor) -> Tensor:
        def wait(gradient: Tensor) -> Tensor:
            assert self.exchange.arrived.acquire(timeout=LIMIT_S), "nothing is summed yet"
            return gradient

        return in_backward(wait, x)


def test_the_last_layer_is_summed_before_the_first_layers_gradient_exists() -> None:
    """Between the layers the backward waits for the sum: it would wait for ever if it came after."""
    exchange = Gate.exchange = Alone()
    first, last = nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False)
    versions = prepared(nn.Sequential(first, Gate(), last))
    with reducing(versions, [[ME, OTHER]], exchange) as reducer:
        last_backward(reducer, versions, 1)
        reducer.gradients(7, 1)
    assert exchange.order == [0, 1]


def test_gradients_end_in_the_thread_that_has_seen_the_end_of_their_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the worker goes on late: the other thread's stream may still read their memory."""
    versions = prepared(mlp(6, 6))
    refs: list[weakref.ref[Tensor]] = []
    ended: list[str] = []
    take, submit = versions.take, CommThread.submit

    def watched(update: int, parameters: Iterable[int]) -> Gradients:
        taken = take(update, parameters)
        refs.extend(
            weakref.ref(gradient, lambda _: ended.append(threading.current_thread().name))
            for gradient in taken
            if gradient is not None
        )
        return taken

    def done_at_once(lane: CommThread, function: Callable[[], FlatBucket]) -> Future[FlatBucket]:
        future = submit(lane, function)
        future.result(LIMIT_S)
        return future

    monkeypatch.setattr(versions, "take", watched)
    monkeypatch.setattr(CommThread, "submit", done_at_once)
    with reducing(versions, [[ME, OTHER]], Alone()) as reducer:
        last_backward(reducer, versions, 1)
        assert refs
        assert ended == ["lane of a test"] * len(refs)


def test_only_the_last_backward_of_an_update_starts_sums() -> None:
    exchange, versions = Alone(), prepared(mlp(6, 3))
    with reducing(versions, [[ME]], exchange) as reducer:
        for x in (1.0, 2.0):
            backward(versions, 1, x)
        assert exchange.rounds == []
        last_backward(reducer, versions, 1, 3.0)
        found = reducer.gradients(7, 1)
    assert_close(found, expected(mlp(6, 3), 1.0, 2.0, 3.0))


def test_sums_that_wait_for_their_update_are_counted() -> None:
    """As in parallel pipelines of 2BW, where the next update's sum has begun by then."""
    exchange, versions = Alone(), prepared(mlp(6, 3))
    one = sum(p.nbytes for p in versions.parameters[0])
    with reducing(versions, [[ME], [ME]], exchange) as reducer:
        counted = [reducer.bytes]
        for update in (1, 2):
            last_backward(reducer, versions, update)
            counted.append(reducer.bytes)
        for update in (1, 2):
            reducer.gradients(7, update)
            counted.append(reducer.bytes)
    assert counted == [0, one, 2 * one, one, 0]


# --- Order ---------------------------------------------------------------------------------------


def test_all_sum_in_one_order_update_by_update_and_from_the_last_bucket() -> None:
    exchange, versions = Alone(), prepared(mlp(6, 3))
    with reducing(versions, [[ME, OTHER]] * 3, exchange) as reducer:
        for update in (1, 2, 3):
            last_backward(reducer, versions, update)
            reducer.gradients(7, update)
    assert exchange.order == list(range(6))
    assert {round.stage for round in exchange.rounds} == {7}
    assert {tuple(round.contributors) for round in exchange.rounds} == {(ME, OTHER)}
    assert [len(numbers) for numbers in exchange.contents] == [3, 18] * 3


def test_a_later_updates_last_backward_waits_for_the_earlier_one() -> None:
    """A table may run them so; the others sum in the order of the updates."""
    exchange, versions = Alone(), prepared(mlp(6, 3))
    with reducing(versions, [[ME], [ME]], exchange) as reducer:
        last_backward(reducer, versions, 2, 2.0)
        assert exchange.rounds == []
        last_backward(reducer, versions, 1, 1.0)
        assert_close(reducer.gradients(7, 1), expected(mlp(6, 3), 1.0))
        assert_close(reducer.gradients(7, 2), expected(mlp(6, 3), 2.0))
    assert exchange.order == [0, 1, 2, 3]


def test_others_updates_are_summed_before_ones_own() -> None:
    """As in ASP: update 1 and 2 are another's; this one's backward for 3 starts them as well."""
    exchange, versions = Alone(others=4.0), prepared(mlp(6, 3))
    with reducing(versions, [[OTHER], [OTHER], [ME]], exchange) as reducer:
        last_backward(reducer, versions, 3)
        for update in (1, 2):
            found = reducer.gradients(7, update)
            assert_close(found, [torch.full((3, 6), 4.0), torch.full((3,), 4.0)])
        assert_close(reducer.gradients(7, 3), expected(mlp(6, 3), 1.0))
    assert exchange.order == list(range(6))


def test_ones_own_gradient_of_a_later_update_stays_out_of_anothers() -> None:
    """Its backward is done before update 1, of the other, is made."""
    exchange, versions = Alone(others=4.0), prepared(mlp(6, 3))
    with reducing(versions, [[OTHER], [ME]], exchange) as reducer:
        backward(versions, 2, 1.0)
        assert_close(reducer.gradients(7, 1), [torch.full((3, 6), 4.0), torch.full((3,), 4.0)])
        last_backward(reducer, versions, 2, 2.0)
        assert_close(reducer.gradients(7, 2), expected(mlp(6, 3), 1.0, 2.0))


# --- What is left behind -------------------------------------------------------------------------


def test_nothing_is_kept_of_an_update_that_was_made() -> None:
    exchange, versions = Alone(), prepared(mlp(6, 3), buffers=2)
    with reducing(versions, [[ME]] * 3, exchange) as reducer:
        for update in (1, 2, 3):
            last_backward(reducer, versions, update, buffer=update % 2)
            reducer.gradients(7, update)
            assert list(versions.all_gradients()) == []
        assert reducer._futures == {}
        assert reducer._left == {}


def test_closing_takes_the_hooks_away_and_ends_the_lane() -> None:
    exchange, versions = Alone(), prepared(mlp(6, 3))
    before = set(threading.enumerate())
    with reducing(versions, [[ME]], exchange):
        (lane,) = set(threading.enumerate()) - before
    lane.join(LIMIT_S)
    assert not lane.is_alive()
    backward(versions, 1)
    assert not any(p._post_accumulate_grad_hooks for p in versions.parameters[0])
    assert exchange.rounds == []


def test_a_failed_sum_fails_whoever_needs_it() -> None:
    class Broken(Alone):
        def sum(self, round: ReduceKey, content: FlatBucket) -> FlatBucket:
            raise ZeroDivisionError

    versions = prepared(mlp(6, 3))
    with reducing(versions, [[ME]], Broken()) as reducer:
        last_backward(reducer, versions, 1)
        with pytest.raises(ZeroDivisionError):
            reducer.gradients(7, 1)
