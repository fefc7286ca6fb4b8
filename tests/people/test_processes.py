"""Processes as people use them: the plain loop's losses, or a sentence that says what to do."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.engine.transports import torchrun, watchdog
from pipekit.engine.transports.processes import runner, worker_pool
from pipekit.engine.transports.processes.forkserver import forkserver, without_main_module
from tests.attacks.left import children, is_alive
from tests.engine.gloo import over_gloo
from tests.engine.test_failures import LIMIT_S, wait_until
from tests.people.plain import plain_loop

Batches = list[tuple[Tensor, Tensor]]
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def model(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), *more, nn.Linear(6, 6), nn.Linear(6, 3))


def batches(count: int = 4, seed: int = 1) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator))
        for _ in range(count)
    ]


def piped(layers: nn.Sequential, loss: Any = None, schedule: Any = None, **how: Any) -> pk.Pipeline:
    return pk.Pipeline(
        layers,
        schedule or schedules.flush(2, 4),
        balance=[2, len(layers) - 2],
        optimizer=SGD,
        loss=loss or nn.MSELoss(),
        transport="distributed",
        **how,
    )


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_operator_threads_set_after_the_first_call_are_heard(
    transport: str, by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are split over them, so that they decide on bits."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    threads = lambda output, target: output.sum() * 0 + torch.get_num_threads()  # noqa: E731
    how: dict[str, Any] = {"optimizer": SGD, "loss": threads, "transport": transport}
    pipe = pk.Pipeline(nn.Sequential(nn.Linear(6, 3)), schedules.flush(1, 2), **how)
    try:
        assert pipe.evaluate(batches()) == 2
        if by_torch:
            torch.set_num_threads(1)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert pipe.evaluate(batches()) == 1  # in the same processes
    finally:
        pipe.close()
        torch.set_num_threads(before)


def rank() -> int:
    return int(os.environ.get("RANK", -1))


def losses_of(read: Callable[[], Any], loss: Any = None, **how: Any) -> list[float]:
    """Train in two processes, each of which reads its data by a function."""
    train = partial(_train, read, loss, **how)
    return [*over_gloo(train, 2)[0]]


def _train(read: Callable[[], Any], loss: Any, steps: int | None = None, **how: Any) -> list[float]:
    return piped(model(), loss, **how).train(read(), steps=steps).losses


def plain(read: Batches) -> list[float]:
    return plain_loop(model(), SGD, nn.MSELoss(), read, 4)


# Under torchrun every process reads all data itself.

REMEDY = "under torchrun every process reads all data itself, .* seed alike in every process"


def test_the_same_data_in_each_process_train_as_in_the_plain_loop() -> None:
    assert losses_of(batches) == plain(batches())


def reordered() -> Batches:
    read = batches()
    return read[::-1] if rank() == 1 else read


def rows_in_another_order() -> Batches:
    read = batches()
    if rank() == 1:
        read[2] = (read[2][0], read[2][1].flip(0))
    return read


def to_themselves() -> Batches:
    """Each process adds noise of its own to what is input and target."""
    return [(x[:, :3].repeat(1, 2), x[:, :3]) for x, _ in batches(seed=rank())]


@pytest.mark.parametrize(
    ("read", "first"),
    [(reordered, 0), (rows_in_another_order, 2), (to_themselves, 0)],
)
def test_other_data_in_a_process_are_named(read: Callable[[], Batches], first: int) -> None:
    said = f"batch {first} of worker 1 differs from that of worker 0: {REMEDY}"
    with pytest.raises(Exception, match=said):
        losses_of(read)


def test_inputs_that_each_process_augments_otherwise_may_differ() -> None:
    """The last stage reads its targets alone; it trains on the first stage's inputs."""

    def augmented(seed: int | None = None) -> Batches:
        noise = batches(seed=2 + (rank() if seed is None else seed))
        return [(x + n, y) for (x, y), (n, _) in zip(batches(), noise, strict=True)]

    assert losses_of(augmented) == plain(augmented(0))


def test_a_prediction_needs_its_inputs_in_the_first_process_alone() -> None:
    def predict() -> list[Tensor]:
        return piped(model()).predict(
            [x for x, _ in batches()] if rank() == 0 else [x for x, _ in batches(seed=5)]
        )

    expected = [model()(x).detach() for x, _ in batches()]
    assert all(map(torch.allclose, over_gloo(predict, 2)[0], expected))


@pytest.mark.parametrize("method", [schedules.flush(2, 4), schedules.two_bw(2, 4)])
def test_a_stream_that_ends_before_its_steps_ends_the_run(method: Any) -> None:
    """It hung, since microbatches before the end were skipped as well."""
    here = pk.Pipeline(model(), method, balance=[2, 2], optimizer=SGD, loss=nn.MSELoss())
    assert (
        losses_of(lambda: iter(batches()), steps=9, schedule=method) == here.train(batches()).losses
    )


def test_a_list_that_is_shorter_in_a_process_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match=f"worker 0 has 5 and worker 1 has 4; {REMEDY}"):
        losses_of(lambda: batches(5 - rank()))


@pytest.mark.parametrize("tied", [False, True])
def test_other_weights_in_a_process_are_refused(tied: bool) -> None:
    """As of a model made after torch.manual_seed(rank): its replicas would never be one model."""

    def train() -> None:
        torch.manual_seed(rank())
        first, last = nn.Linear(6, 6), nn.Linear(6, 3)
        made = nn.Sequential(first, nn.Sequential(first, last) if tied else last)
        method = schedules.flush(2, 2) if tied else schedules.replicate(schedules.flush(1, 2), 2)
        pk.Pipeline(made, method, optimizer=SGD, loss=nn.MSELoss(), transport="distributed").train(
            batches()
        )

    with pytest.raises(ValueError, match=r"worker 1 begins with other weights than worker 0"):
        over_gloo(train, 2)


@pytest.mark.parametrize("call", [lambda p: p.evaluate(batches()), lambda p: p.state_dict()])
def test_a_call_that_one_process_leaves_out_is_named(call: Callable[[Any], Any]) -> None:
    def run() -> None:
        pipe = piped(model())
        pipe.train(batches())
        if rank() == 0:
            call(pipe)
        pipe.train(batches())

    said = r"worker \d is in .*, and worker \d in .* all processes make the same calls.*rank == 0"
    with pytest.raises(ValueError, match=said):
        over_gloo(run, 2)


@pytest.mark.parametrize("shorter", [0, 1])
def test_a_stream_that_is_shorter_in_a_process_is_said_and_does_not_hang(
    shorter: int, tmp_path: Path
) -> None:
    sign = tmp_path / "said"

    def run() -> None:
        def said(stalled: Exception) -> None:
            part = tmp_path / f"said by {rank()}"
            part.write_text(str(stalled))
            part.replace(sign)  # in one step, for who looks meanwhile

        torchrun._end = said  # in place of the process's end
        read = iter(batches(5 - 2 * (rank() == shorter)))
        train = partial(piped(model()).train, read, steps=9)
        threading.Thread(target=train, daemon=True).start()
        wait_until(sign.exists, LIMIT_S)
        raise RuntimeError(sign.read_text())  # else they would meet, each in the midst of a run

    said = f"worker {shorter} has 3 and worker {1 - shorter} has [45] or more; {REMEDY}"
    with pytest.raises(RuntimeError, match=said):
        over_gloo(run, 2)


SCRIPT = """
    import sys
    import torch
    from pipekit import schedules
    from tests.people.test_processes import Fails, batches, model, piped, rank

    class Slow(list):
        def __iter__(self):
            for number, batch in enumerate(list.__iter__(self)):
                if number == 2:
                    print("begun", flush=True)
                    if sys.argv[1] == "agent":
                        import time
                        time.sleep(1000)
                yield batch

    piped(model(Fails(ZeroDivisionError, "in a layer"))).train(Slow(batches(8)))
"""


def torchrun_of(kind: str, tmp_path: Path, repository: Path) -> "subprocess.Popen[str]":
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, *launch, str(script), kind],
        env={**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_torchrun_says_the_cause_in_one_line(tmp_path: Path, repository: Path) -> None:
    """There were three tracebacks of 50 lines, and the neighbour was to blame."""
    with torchrun_of("fails", tmp_path, repository) as job:
        _, said = job.communicate(timeout=LIMIT_S)
    cause = "ZeroDivisionError: in a layer (raised in F5 of stage 1)"
    assert f"traceback : {cause}" in said, "torchrun's own summary says it as well"
    mine = [line for line in said.splitlines() if line.startswith("[rank")]
    assert len(mine) < 15
    neighbours = {line for line in mine if line.startswith("[rank0]")}
    # It says the cause, unless torchrun has ended it before.
    assert neighbours <= {f"[rank0]: pipekit: worker 1 has failed: {cause}"}
    assert sum("Traceback" in line for line in mine) == 1


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="by a means of Linux")
def test_a_killed_torchrun_leaves_no_worker_even_a_stopped_one(
    tmp_path: Path, repository: Path
) -> None:
    with torchrun_of("agent", tmp_path, repository) as job:
        assert job.stdout
        job.stdout.readline()
        workers = sorted(children(job.pid))
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGSTOP)
        job.kill()
        wait_until(lambda: not any(map(is_alive, workers)), LIMIT_S)


# Processes that are started here.


class Fails(nn.Module):
    """Raises an error in its sixth forward in training."""

    def __init__(self, kind: type[BaseException], *words: str) -> None:
        super().__init__()
        self.kind, self.words, self.left = kind, words, 6

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.left -= 1
            if not self.left:
                raise self.kind(*self.words)
        return x


class Bare(Exception):
    def __reduce__(self) -> Any:
        return Bare, self.args


@pytest.mark.parametrize(
    ("error", "words", "kind", "says"),
    [
        (ZeroDivisionError, ["in a layer"], ZeroDivisionError, "in a layer"),
        (KeyError, ["gone"], KeyError, "gone"),
        (Bare, ["bare"], Bare, "bare"),
        (MemoryError, [], MemoryError, "a worker's process has no memory left: give it more, or"),
    ],
)
def test_an_error_keeps_its_note_of_stage_and_microbatch(
    error: type[Exception], words: list[str], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        piped(model(Fails(error, *words))).train(batches())
    assert caught.value.__notes__ == ["(raised in F5 of stage 1)"]


def processes(pipe: pk.Pipeline) -> list[int]:
    pool: Any = vars(vars(pipe)["_runner"])["_pool"]
    return [handle.process.pid for handle in vars(pool)["_handles"]]


@pytest.mark.parametrize("at", ["train", "state_dict"])
def test_a_stopped_worker_is_named_and_goes_on_when_it_is_let(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (watchdog, worker_pool):
        monkeypatch.setattr(module, "NOTICE_S", 0.5)
    # Of capfd's file a thread would lose what another writes between its seek and its read.
    monkeypatch.setattr(sys, "stderr", heard := io.StringIO())
    pipe = piped(model())
    first = pipe.train(batches()).losses
    stopped = processes(pipe)[1]
    os.kill(stopped, signal.SIGSTOP)
    said = f"worker 1's process {stopped} is stopped: kill -CONT {stopped} lets it go on"

    def let_go_on() -> None:
        try:
            wait_until(lambda: said in heard.getvalue(), LIMIT_S)
        finally:
            os.kill(stopped, signal.SIGCONT)

    thread = threading.Thread(target=let_go_on)
    thread.start()
    second = pipe.train(batches(6)[4:]).losses if at == "train" else []
    weights = pipe.state_dict()
    thread.join()
    assert said in heard.getvalue()
    expected = piped(model())
    assert first == expected.train(batches()).losses
    assert second == (expected.train(batches(6)[4:]).losses if at == "train" else [])
    assert all(map(torch.equal, weights.values(), expected.state_dict().values()))


def test_a_pipeline_starts_what_starts_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch takes seconds, which pass while the program makes its data."""
    begun = []
    monkeypatch.setattr(runner, "forkserver", lambda: begun.append(True))
    pk.Pipeline(model(), schedules.flush(2, 4), optimizer=SGD, loss=nn.MSELoss())
    assert begun == []
    piped(model())
    assert begun == [True]


def test_a_fork_of_a_program_with_processes_may_start_its_own() -> None:
    """It failed, as nobody can wait for the fork server of its parent."""
    forkserver()
    if (child := os.fork()) == 0:
        try:
            forkserver()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_folder_for_temporary_files_whose_name_is_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("multiprocessing.util.get_temp_dir", lambda: str(tmp_path) * 9)
    monkeypatch.setattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    with pytest.raises(OSError, match=r"has no socket in .*too long\): let TMPDIR"):
        piped(model())


def test_a_daemonic_process_that_cannot_start_others_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(ValueError, match=r"multiprocessing.Pool.*use transport='threads'"):
        piped(model())


def test_threads_that_start_processes_at_once_leave_the_script_its_main_module() -> None:
    """Else nothing of the script could be pickled any more."""
    script, begun, go_on = sys.modules["__main__"], threading.Event(), threading.Event()

    def start() -> None:
        with without_main_module():
            begun.set()
            go_on.wait(LIMIT_S)

    thread = threading.Thread(target=start)
    with without_main_module():
        thread.start()
        begun.wait(0.2)  # in vain
    go_on.set()
    thread.join()
    assert sys.modules["__main__"] is script


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="by a means of Linux")
@pytest.mark.parametrize("at", ["training", "waiting"])
def test_no_worker_outlives_its_killed_program_even_a_stopped_one(
    at: str, repository: Path
) -> None:
    program = """
        import sys
        from tests.people.test_processes import batches, model, piped, processes

        def say(done):
            print(*processes(pipe), flush=True)

        pipe = piped(model())
        if sys.argv[1] == "training":
            pipe.train(batches(10_000), on_batch=say)
        pipe.train(batches())
        say(None)
        input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), at],
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout
        workers = [int(each) for each in job.stdout.readline().split()]
        assert len(workers) == 2
        if at == "waiting":
            os.kill(workers[0], signal.SIGSTOP)
        job.kill()
        wait_until(lambda: not any(map(is_alive, workers)), LIMIT_S)
