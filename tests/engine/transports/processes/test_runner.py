"""Workers in processes of their own, started from a script or a notebook."""

import os
import subprocess
import sys
import textwrap
import threading
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipekit import schedules
from pipekit.engine.transports.processes import runner
from pipekit.engine.transports.processes.pickling import RemoteTraceback, portable
from tests.engine.examples import data, mixed, mlp, pipeline, trained, unlike
from tests.people.test_torchgpipe import Calls


@pytest.mark.parametrize("method", ["flush", "pipedream"])
def test_linked_by_torch_distributed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes with GPUs are; here over gloo."""
    batches, balance = data(rows=[8, 12, 9, 8]), [2, 3, 3]
    expected = pipeline(mixed(), method, balance, clip_norm=0.5)
    there = trained(expected, batches)
    monkeypatch.setattr(runner, "is_accelerator", lambda _: True)
    pipe = pipeline(mixed(), method, balance, clip_norm=0.5, transport="distributed")
    assert unlike(trained(pipe, batches), there) == []
    assert pipe.evaluate(batches) == expected.evaluate(batches)


def test_replicas_keep_their_processes_over_an_evaluation() -> None:
    pipe = pipeline(mlp(6, 3), schedules.pipedream([2]), [1], transport="distributed")
    pipe.train(data(2))
    before = {*active_children()}
    pipe.evaluate(data(2))
    assert {*active_children()} == before


def test_runs_leave_no_open_files() -> None:
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1], transport="distributed")
    counts = []
    for _ in range(4):
        pipe.train(data(2))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1]


class Holds(nn.Module):
    """Has something, in a worker's process, that no pickle takes."""

    def __init__(self) -> None:
        super().__init__()
        self.parent = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.parent:
            self.lock = threading.Lock()
        return x


def test_a_stage_that_cannot_travel_says_so_each_time_and_trains_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Holds(), nn.Linear(6, 3))
    pipe = pipeline(model, "flush", [1, 2], transport="distributed")
    pipe.train(data(2))
    for _ in range(2):
        with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock'"):
            pipe.state_dict()
    assert len(pipe.train(data(2)).losses) == 2


def divide(x: Tensor) -> Tensor:
    return x / (1 // 0) if torch.is_grad_enabled() else x


def test_the_cause_is_the_workers_traceback() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Calls(divide), nn.Linear(6, 3))
    with pytest.raises(ZeroDivisionError) as caught:
        pipeline(model, "flush", [1, 2], transport="distributed").train(data(2))
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "return x / (1 // 0)" in str(cause)


def test_notes_travel_with_the_error() -> None:
    error = ValueError("wrong")
    error.add_note("there")
    assert portable(error) is error
    assert str(portable(Stubborn("stays"))) == "Stubborn: stays"


class Stubborn(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()  # no pickle takes one


SCRIPT = """
    import torch
    from torch import nn
    import pipekit as pk

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(self.linear(x)) * factor

    class Mine(Exception):
        pass

    class Fails(Twice):
        def forward(self, x):
            if torch.is_grad_enabled():
                raise Mine("of my own type")
            return x

    factor = 0.5
    torch.manual_seed(0)
    model = nn.Sequential(Twice(), nn.Dropout(0.5), Twice(), nn.Linear(6, 3))
    batches = [(torch.randn(10, 6), torch.randn(10, 3)) for _ in range(3)]
    options = dict(
        balance=[1, 2, 1],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        loss=lambda output, target: ((output - target) ** 2).mean(),
    )
    pipes = [
        pk.Pipeline(model, pk.schedules.flush(3, 4), transport=t, **options)
        for t in ("threads", "distributed")
    ]
    losses = [pipe.train(batches).losses for pipe in pipes]
    states = [pipe.state_dict() for pipe in pipes]
    assert losses[0] == losses[1]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    model[2] = Fails()
    try:
        pk.Pipeline(
            model, pk.schedules.flush(3, 4), transport="distributed", **options
        ).train(batches)
    except Mine as error:
        assert "of my own type" in str(error)
    print("as good as threads")
"""


# As multiprocessing runs the script in a process that it has started.
SPAWNED = "import multiprocessing.spawn, sys; multiprocessing.spawn.import_main_path(sys.argv[1])"


@pytest.mark.long
@pytest.mark.parametrize("begun", [[], ["-c", SPAWNED]], ids=["alone", "spawned"])
def test_a_script_needs_no_guard(begun: list[str], tmp_path: Path, repository: Path) -> None:
    """Its classes, lambdas, globals and exceptions are known to the workers."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, *begun, str(path)],
        env={**os.environ, "PYTHONPATH": str(repository)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "as good as threads\n"), done.stderr
    assert done.stderr == ""
