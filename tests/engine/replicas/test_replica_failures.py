"""When one worker of a stage fails: its error surfaces, and nobody waits for its gradients."""

import time

import pytest
import torch
from torch import Tensor, nn

from pipekit import Schedule, bucketing, schedules
from tests.engine.examples import Batches, data, in_backward, pipeline, sgd
from tests.engine.replicas.test_replicas import replicated
from tests.engine.test_failures import LIMIT_S, OutOfCheeseError, fault, pipekit_threads, wait_until


class FailsAtMark(nn.Module):
    """Fails on the minibatch that is marked."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and bool((x.abs() > 1000).any()):
            if self.what == "backward":
                return in_backward(fault, x)
            if self.what == "late":  # the other replicas have come to wait for this one
                time.sleep(0.1)
            raise OutOfCheeseError("in the forward")
        return x


def marked_at(minibatch: int) -> Batches:
    batches = data(30)
    batches[minibatch] = (batches[minibatch][0] + 10_000, batches[minibatch][1])
    return batches


# The third of five layers fails, which is in a stage on several workers.
FAILING: dict[str, tuple[Schedule, list[int]]] = {
    "3": (schedules.pipedream([3]), [5]),
    "3-1": (schedules.pipedream([3, 1]), [4, 1]),
    "1-2": (schedules.pipedream([1, 2]), [2, 3]),
    "ASP": (schedules.asp(3), [5]),
}


def around(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), layer, nn.Linear(6, 6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("name", "what", "transport"),
    [
        ("3", "forward", "threads"),
        ("3-1", "backward", "threads"),
        ("3-1", "backward", "distributed"),
        ("1-2", "forward", "threads"),
        ("ASP", "forward", "distributed"),
    ],
)
def test_a_failing_replica_ends_all_with_its_error(name: str, what: str, transport: str) -> None:
    schedule, balance = FAILING[name]
    model = around(FailsAtMark(what))
    pipe = pipeline(model, schedule, balance, optimizer=sgd, transport=transport)
    before = pipekit_threads()
    with pytest.raises(OutOfCheeseError, match=f"in the {what}"):
        pipe.train(marked_at(7))
    wait_until(lambda: not pipekit_threads() - before, LIMIT_S)
    with pytest.raises(RuntimeError, match="build the pipeline again"):
        pipe.train(data(3))


@pytest.mark.parametrize("name", FAILING)
def test_lanes_with_many_sums_ahead_end_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter is a sum of its own: a lane has more to do than the one it waits for."""
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)
    schedule, balance = FAILING[name]
    pipe = pipeline(around(FailsAtMark("late")), schedule, balance, optimizer=sgd)
    before = pipekit_threads()
    with pytest.raises(OutOfCheeseError):
        pipe.train(marked_at(4))
    wait_until(lambda: not pipekit_threads() - before, LIMIT_S)


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_sparse_gradients_are_refused_by_name(transport: str) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 3, sparse=True)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.table((x[:, 0].abs() * 3).long() % 10)
            return y

    layers = nn.Sequential(Words(), nn.Linear(3, 3))
    pipe = replicated(layers, [2], [2], optimizer=sgd, transport=transport)
    with pytest.raises(ValueError, match="sparse=False, or keep its stage on one worker"):
        pipe.train(data(4))
    alone = replicated(layers, [1], [2], optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert len(alone.train(data(2)).losses) == 2
