"""When something goes wrong: the error surfaces at once and as it is, and nothing is left running."""

import os
import signal
import threading
import time
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from tests.attacks.left import children, worker_processes
from tests.engine.examples import Batches, Midst, data, in_backward, mlp, nesterov, pipeline, values
from tests.engine.parametrized import TRANSPORTS, first_over_processes
from tests.people.test_torchgpipe import Calls

LIMIT_S = 300.0  # only there to end a hang, on a loaded host as well


@pytest.fixture(autouse=True)
def _start_the_fork_server() -> None:
    """It stays, and is none of the processes that a test may leave behind."""
    global _warm
    if not _warm:
        pipeline(mlp(6, 3), "flush", [1], transport="distributed").train(data(1))
        _warm = True


_warm = False


def pipekit_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "pipekit" in thread.name}


class Watch:
    """Fails if the block leaves a thread or a process; those before it are others' business."""

    def __enter__(self) -> "Watch":
        self._threads = pipekit_threads()
        self._workers = worker_processes()
        self._mine = children(os.getpid())
        self._cores = torch.get_num_threads()
        return self

    def __exit__(self, *error: object) -> None:
        wait_until(lambda: not pipekit_threads() - self._threads, LIMIT_S)
        wait_until(lambda: worker_processes() <= self._workers, LIMIT_S)
        assert children(os.getpid()) <= self._mine
        assert torch.get_num_threads() == self._cores


class OutOfCheeseError(Exception):
    pass


class NeedsTwoArguments(Exception):
    """Cannot travel: unpickling calls it with one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fault(_: Tensor) -> Tensor:
    raise OutOfCheeseError("in the backward")


class Failing(nn.Module):
    """A layer that does something when it runs for the n-th time while training."""

    def __init__(self, what: str, at: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.what, self.left = what, at

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if not torch.is_grad_enabled():  # the first try, before training, or evaluation
            return y
        self.left -= 1
        if self.left == 0:
            if self.what == "forward":
                raise OutOfCheeseError("in the forward")
            if self.what == "untransferable":
                raise NeedsTwoArguments("this", "that")
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "exit":
                os._exit(7)
            if self.what == "backward":
                return in_backward(fault, y)
        return y


def failing(what: str, stage: int, stages: int = 3, **options: Any) -> pk.Pipeline:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 6) for _ in range(stages)]
    layers[stage] = Failing(what)
    model = nn.Sequential(*layers, nn.Linear(6, 3))
    return pipeline(model, options.pop("method", "flush"), [*[1] * (stages - 1), 2], **options)


@pytest.mark.parametrize(
    ("what", "stage", "transport"),
    [
        ("forward", 0, "threads"),
        ("forward", 2, "distributed"),
        ("backward", 1, "threads"),
        ("backward", 1, "distributed"),
    ],
)
def test_an_exception_in_a_layer_surfaces(what: str, stage: int, transport: str) -> None:
    pipe = failing(what, stage, transport=transport)
    with Watch(), pytest.raises(OutOfCheeseError, match=f"in the {what}") as caught:
        pipe.train(data(200))
    error: BaseException | None = caught.value
    text = "".join(str(e) for e in (error, error and error.__cause__))
    frames = [entry.name for entry in caught.traceback]
    assert what in frames or f"in {what}" in text, "the layer's own line is in the traceback"
    letter = "F" if what == "forward" else "B"
    assert any(f"{letter}" in n and f"of stage {stage}" in n for n in caught.value.__notes__)


def test_notebooks_show_the_users_lines_of_an_error() -> None:
    """IPython leaves out frames with this name, and prints the last one whatever it is."""
    with pytest.raises(OutOfCheeseError) as caught:
        failing("forward", 1).train(data(4))
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    shown = [each.f_code.co_name for each in frames if "__tracebackhide__" not in each.f_locals]
    assert shown == [test_notebooks_show_the_users_lines_of_an_error.__name__, "forward"]
    assert len(frames) > 10


def test_a_failed_pipeline_says_that_it_cannot_go_on() -> None:
    pipe = failing("backward", 1)
    with pytest.raises(OutOfCheeseError):
        pipe.train(data(3))
    for use in (lambda: pipe.train(data(3)), lambda: pipe.evaluate(data(3)), pipe.state_dict):
        with pytest.raises(RuntimeError, match="build the pipeline again"):
            use()


def test_an_exception_that_cannot_travel_is_told() -> None:
    with Watch(), pytest.raises(RuntimeError, match="NeedsTwoArguments: this and that"):
        failing("untransferable", 1, transport="distributed").train(data(50))


@first_over_processes("stage", [1, 0])
def test_an_exception_in_evaluation(stage: int, transport: str) -> None:
    """The first stage receives nothing, and must end as well; then training goes on."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    model.insert(stage, FailsInEvaluation())
    pipe = pipeline(model, "flush", [2 - stage, 1 + stage], transport=transport)
    with Watch(), pytest.raises(OutOfCheeseError):
        pipe.evaluate(data(1000))
    assert len(pipe.train(data(2)).losses) == 2


class FailsInEvaluation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            raise OutOfCheeseError
        return x


# --- Interrupts and kills ------------------------------------------------------------------------


def interrupting(batches: Batches) -> Midst:
    """Soon after the first batches, Ctrl-C or a notebook's stop button.

    Not some time after the call, which on a busy machine may be during the trial of the layers:
    Python loses an interrupt within a weak reference's callback, and torch has many there.
    """
    return Midst(batches, 5, threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start)


@first_over_processes("stages", [3, 1])
def test_an_interrupt(stages: int, transport: str) -> None:
    model = nn.Sequential(*(Calls(slow) for _ in range(stages)), nn.Linear(6, 3))
    pipe = pipeline(model, "flush", [*[1] * (stages - 1), 2], transport=transport)
    with Watch(), pytest.raises(KeyboardInterrupt):
        pipe.train(interrupting(data(400)))


def slow(x: Tensor) -> Tensor:
    time.sleep(0.02)
    return x


@pytest.mark.parametrize("stage", [0, 2])
def test_a_killed_worker(stage: int) -> None:
    at = f"last seen: worker {stage} computes F2 of stage {stage}"
    with Watch(), pytest.raises(pk.WorkerDied, match=rf"worker {stage}.*-9.*killed.*{at}"):
        failing("kill", stage, transport="distributed").train(data(200))


def wait_until(condition: Any, seconds: float) -> None:
    """Look now and then; a pause of the whole machine counts as one look."""
    for _ in range(round(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("waited in vain")


# --- Wrong input: a sentence with the remedy, before any worker starts ----------------------------


def build(**changes: Any) -> pk.Pipeline:
    arguments: dict[str, Any] = {
        "model": mlp(6, 6, 6, 3),
        "schedule": schedules.flush(3, 4),
        "balance": [1, 1, 1],
        "optimizer": nesterov,
        "loss": nn.MSELoss(),
    }
    arguments |= changes
    return pk.Pipeline(arguments.pop("model"), arguments.pop("schedule"), **values(**arguments))


def not_a_number(output: Tensor, target: Tensor) -> Tensor:
    return (output - target) ** 2


def sharing() -> nn.Sequential:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6))
    model[2].running_mean = model[0].running_mean
    return model


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model": nn.Linear(6, 3)}, TypeError, r"nn.Sequential.*not Linear"),
        ({"model": nn.Sequential()}, ValueError, "no layers"),
        ({"balance": [1, 1, 2]}, ValueError, r"sums to 4 layers and the model has 3"),
        ({"balance": [1, 2]}, ValueError, "2 stages and the schedule has 3"),
        ({"balance": [0, 2, 1]}, ValueError, "at least one layer"),
        ({"balance": "best"}, ValueError, "auto"),
        ({"model": mlp(6, 3)}, ValueError, "at most 1 stages"),
        ({"schedule": "flush"}, TypeError, "must be a Schedule"),
        ({"schedule": schedules.inference(3)}, ValueError, "no backward"),
        ({"transport": "pigeons"}, ValueError, "threads, distributed, not 'pigeons'"),
        ({"devices": ["cpu"]}, ValueError, "1 devices for 3 workers: name one for each"),
        ({"devices": ["cpu", "cpu", "cuda:99"]}, ValueError, "cuda:99 does not exist"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, TypeError, "optimizer was made outside"),
        ({"loss": 3}, TypeError, "loss must be a function"),
        ({"model": sharing()}, ValueError, "stages 0 and 2 share the buffer '2.running_mean'"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        build(**changes)
    assert "\n" not in str(caught.value)


X, Y = torch.zeros(8, 6), torch.zeros(8, 3)


@pytest.mark.parametrize(
    ("batches", "kind", "message"),
    [
        ([], ValueError, "no batches"),
        (iter([]), ValueError, "no batches"),
        ([(X[:0], Y[:0])], ValueError, "batch 0 is empty"),
        ([(X[:3], Y[:3])], ValueError, "3 rows for 4 microbatches.*drop_last"),
        ([X], ValueError, "not a pair"),
        ([((X, X[:4]), Y)], ValueError, "same first dimension"),
        ([(X, Y[:4])], ValueError, "rows"),
        ([(X, 3)], TypeError, "not int"),
        ([("abc", Y)], TypeError, "not str"),
        ([(X[:, :5], Y)], RuntimeError, "shapes cannot be multiplied"),
    ],
)
def test_wrong_batches(batches: Any, kind: type[Exception], message: str) -> None:
    """The pipeline is as good as before: the right batches train."""
    pipe = build(transport="distributed")
    with Watch(), pytest.raises(kind, match=message):
        pipe.train(batches)
    assert pipe.state_dict().keys() == mlp(6, 6, 6, 3).state_dict().keys()


def test_a_layer_whose_output_is_not_tensors() -> None:
    no_tensor = Calls(lambda x: {"x": x, "rows": len(x)})
    pipe = build(model=nn.Sequential(nn.Linear(6, 6), no_tensor, nn.Linear(6, 3)))
    with Watch(), pytest.raises(TypeError, match=r"layer 1 \(Calls\) returns .* not int"):
        pipe.train(data(2))


@TRANSPORTS
def test_a_loss_that_is_not_one_number(transport: str) -> None:
    with Watch(), pytest.raises(TypeError, match="one number for each microbatch"):
        build(loss=not_a_number, transport=transport).train(data(2))


@pytest.mark.parametrize("method", ["flush", "pipedream"])
def test_an_optimizer_that_does_not_take_the_parameters_it_is_given(method: str) -> None:
    model = mlp(6, 6, 3)
    pipe = pipeline(
        model, method, [1, 1], optimizer=lambda _: torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with Watch(), pytest.raises(ValueError, match="parameters"):
        pipe.train(data(4))


def test_a_schedule_that_does_not_fit_the_batches() -> None:
    pipe = build(schedule=schedules.flush(3, 4).take(2))
    with pytest.raises(
        pk.ScheduleError, match=r"for 2 batches and there are 3: pass one without end.*repeat"
    ):
        pipe.train(data(3))
    assert len(pipe.train(data(2)).losses) == 2


def test_automatic_balance_does_not_forget_shared_buffers() -> None:
    pipe = build(model=sharing(), balance="auto")
    batches: Batches = [(x, x) for x, _ in data(2)]
    for _ in range(2):
        with pytest.raises(ValueError, match="share the buffer"):
            pipe.train(batches)
