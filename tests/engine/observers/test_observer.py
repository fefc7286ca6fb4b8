"""Observers: what workers tell them, on which transports, and that the absent ones are not asked."""

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipekit import PipelinedModule, Watch
from pipekit.engine import Observer
from pipekit.engine.observers.observer import WorkerView
from pipekit.schedules import Message, Op, Payload, Step
from pipekit.trees import Tree, leaves
from tests.engine.examples import data, mlp, pipeline
from tests.engine.runs.test_early_end import picky, spoilt
from tests.engine.test_failures import OutOfCheeseError


class Diary(Observer):
    """Writes down everything, by worker."""

    def __init__(self) -> None:
        self.entries: defaultdict[int, list[Any]] = defaultdict(list)

    def begin(self, worker: WorkerView) -> None:
        self.entries[worker.number].append("begin")

    def before_step(self, worker: int, step: Step) -> None:
        self.entries[worker].append(("before", str(step.task)))

    def received(self, worker: int, step: Step, message: Message, source: int, tree: Tree) -> None:
        assert leaves(tree)
        self.entries[worker].append(("received", message, source))

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self.entries[worker].append(("computes", activity))

    def after_compute(self, worker: int, step: Step, activity: str, outputs: Tree) -> None:
        self.entries[worker].append(("computed", activity))

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        self.entries[worker].append(("sent", message, receiver, size))

    def after_step(self, worker: int, step: Step) -> None:
        self.entries[worker].append(("after", str(step.task)))

    def end(self, worker: int) -> None:
        self.entries[worker].append("end")

    def close(self, worker: int) -> None:
        self.entries[worker].append("close")


def test_a_worker_tells_of_every_step_in_order() -> None:
    diary = Diary()
    pipe = pipeline(mlp(6, 6, 3), "gpipe", [1, 1], m=1, recompute="always")
    pipe.train(data(1, rows=4), watch=Watch(observers=[diary]))
    forward, backward = Message(Payload.ACTIVATION, 1, 0), Message(Payload.GRADIENT, 0, 0)
    assert diary.entries[0] == [
        "begin",
        ("before", "F0 of stage 0"),
        ("computes", "FORWARD"),
        ("computed", "FORWARD"),
        ("sent", forward, 1, 4 * 4 * 6),
        ("after", "F0 of stage 0"),
        ("before", "B0 of stage 0"),
        ("computes", "RECOMPUTE"),
        ("computed", "RECOMPUTE"),
        ("received", backward, 1),
        ("computes", "BACKWARD"),
        ("computed", "BACKWARD"),
        ("after", "B0 of stage 0"),
        ("before", "U1 of stage 0"),
        ("computes", "UPDATE"),
        ("computed", "UPDATE"),
        ("after", "U1 of stage 0"),
        "end",
        "close",
    ]
    assert ("received", forward, 0) in diary.entries[1]
    assert ("sent", backward, 0, 4 * 4 * 6) in diary.entries[1]


def test_a_failed_worker_is_closed_and_does_not_end() -> None:
    diary = Diary()
    pipe = pipeline(mlp(6, 3), "gpipe", [1], m=1)
    with pytest.raises(RuntimeError):
        pipe.train([(torch.zeros(4, 5), torch.zeros(4, 3))], watch=Watch(observers=[diary]))
    assert diary.entries == {}, "the probe has refused the batch"
    pipe = pipeline(mlp(6, 3), "gpipe", [1], m=1)
    with pytest.raises(RuntimeError):
        pipe.train(
            [*data(1), (torch.zeros(4, 5), torch.zeros(4, 3))], watch=Watch(observers=[diary])
        )
    assert diary.entries[0][-2:] == ["end", "close"], "it has done all that came before"
    pipe = pipeline(picky(0, backward=True), "gpipe", [3], m=1)
    diary = Diary()
    with pytest.raises(OutOfCheeseError, match="in the backward"):
        pipe.train(spoilt(2, bad=1), watch=Watch(observers=[diary]))
    assert diary.entries[0][-1] == "close"
    assert "end" not in diary.entries[0]


def test_weights_can_be_seen_after_each_update() -> None:
    seen: list[Tensor] = []

    class Weights(Observer):
        def begin(self, worker: WorkerView) -> None:
            self._view = worker

        def after_step(self, worker: int, step: Step) -> None:
            if step.task.op is Op.UPDATE:
                (slots,) = self._view.weights.values()
                seen.append(slots.modules[step.slot].get_parameter("0.weight").detach().clone())

    pipe = pipeline(mlp(6, 3), "gpipe", [1])
    pipe.train(data(3), watch=Watch(observers=[Weights()]))
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], pipe.state_dict()["0.weight"])


class ToFile(Observer):
    """Writes, from wherever the worker lives, which steps it did."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._file = folder / str(worker)

    def after_step(self, worker: int, step: Step) -> None:
        with self._file.open("a") as file:
            file.write(f"{step.task.op.letter}")


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_factory_makes_the_observer_where_the_worker_is(transport: str, tmp_path: Path) -> None:
    pipe = pipeline(mlp(6, 6, 3), "gpipe", [1, 1], m=2, transport=transport)
    pipe.train(data(1), watch=Watch(observers=[partial(ToFile, tmp_path)]))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "0": "FFBBU",
        "1": "FFBBU",
    }


@pytest.mark.parametrize(
    ("observers", "transport", "says"),
    [
        ([Diary()], "distributed", "pass a function that makes a worker's observer there"),
        (["diary"], "threads", "an observer must be"),
        (Observer(), "threads", r"pass Watch\(observers=\[...\]\)"),
    ],
)
def test_what_cannot_watch_is_refused(observers: Any, transport: str, says: str) -> None:
    pipe = pipeline(mlp(6, 3), "gpipe", [1], transport=transport)
    with pytest.raises(TypeError, match=says):
        pipe.train(data(1), watch=Watch(observers=observers))


def test_a_pipelined_module_is_watched_through_its_backward() -> None:
    diary = Diary()
    model = PipelinedModule(
        mlp(6, 6, 3), [1, 1], chunks=2, watch=Watch(trace=False, observers=[diary])
    )
    model(torch.randn(4, 6)).sum().backward()
    told = Counter(entry[1] for entry in diary.entries[0] if entry[0] == "computed")
    assert told == {"FORWARD": 2, "RECOMPUTE": 1, "BACKWARD": 2}
    assert diary.entries[0][0] == "begin"
    assert diary.entries[0][-2:] == ["end", "close"]
