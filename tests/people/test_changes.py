"""Attributes and losses that users change between calls, or in ``on_batch``."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from IPython.extensions.autoreload import superreload
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.layers.user_functions import FunctionState
from tests.people.test_losses import data, no_word

CE = F.cross_entropy


class Tau(nn.Module):
    """A temperature, a flag, and what its forward keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.tau, self.flag, self.unread, self.seen = 1.0, True, 1, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1.0
        return x / self.tau if self.flag else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 3)])
        self.tau = 1.0

    def forward(self, x: Tensor) -> Any:
        return self.blocks[1](self.blocks[0](x).tanh()) / self.tau


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Tau(), nn.Dropout(0.0), nn.Linear(8, 3))


def piped(model: Any, loss: Any = CE, **options: Any) -> pk.Pipeline:
    def still(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    return pk.Pipeline(model, schedules.two_bw(2, 2), optimizer=still, loss=loss, **options)


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_number_that_is_annealed_between_calls_takes_effect() -> None:
    model: Any = layers()
    pipeline = piped(model)
    x, y = data(1)[0]
    for tau in (2.0, 1.0, 0.5):
        model[1].tau = tau
        losses = pipeline.train([(x, y)]).losses
        assert losses == pytest.approx([CE(model(x), y).item()])
        assert pipeline.evaluate([(x, y)]) == pytest.approx(losses[0])


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_what_forwards_and_modes_set_stays_the_stages_own() -> None:
    model: Any = layers()
    pipeline = piped(model)
    pipeline.train(data(1))
    model(data(1)[0][0])  # the user's modules count, too
    model.eval()
    model[1].unread = 2
    with no_word():
        pipeline.train(data(1))


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_flag_is_warned_of() -> None:
    model: Any = layers()
    pipeline = piped(model)
    pipeline.train(data(1))
    model[1].flag = False
    with pytest.warns(UserWarning, match=r"has changed since .*1.flag.*state_dict"):
        pipeline.train(data(1))
    with no_word():
        pipeline.train(data(1))


def test_what_was_recorded_is_warned_of() -> None:
    model = Net()
    pipeline = piped(pk.stages(model, torch.randn(4, 8)))
    with no_word():
        pipeline.train(data(1))
    model.tau = 0.5
    with pytest.warns(UserWarning, match=r"tau of the model changed.*record it again"):
        pipeline.train(data(1))


@dataclass(frozen=True)
class Fixed:
    factor: float = 1.0


RATE = 1.0
CLIP: float | None = 1.0
CONFIG = {"of": {"power": 1}}
FIXED = Fixed()
ARGUMENTS = SimpleNamespace(shift=0.0)


def locked(lock: Any) -> Callable[[Tensor], Tensor]:
    def doubled(x: Tensor) -> Tensor:
        with lock:
            return 2.0 * x

    return doubled


DOUBLED = locked(threading.Lock())
"""No process can send it to another: each has the one that its own import has made."""
SCALE = ContextVar("SCALE", default=1.0)


class Settings:
    gain = 1.0


class Rated(nn.Module):
    """Reads variables of this file."""

    sign = 1.0

    def forward(self, x: Tensor) -> Tensor:
        rate = RATE * SCALE.get() * Settings.gain
        shifted: Tensor = self.sign * raised(x) * rate + ARGUMENTS.shift
        return shifted if CLIP is None else shifted.clamp(-CLIP, CLIP)


def raised(x: Tensor) -> Tensor:
    return DOUBLED(x).pow(CONFIG["of"]["power"]) * FIXED.factor


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a number": lambda patch: patch.setitem(globals(), "RATE", 2.0),
    "a dict": lambda patch: patch.setitem(CONFIG["of"], "power", 2),
    "a value that has gone": lambda patch: patch.setitem(globals(), "CLIP", None),
    "another fixed object": lambda patch: patch.setitem(globals(), "FIXED", Fixed(3.0)),
    "an object's": lambda patch: patch.setattr(ARGUMENTS, "shift", 3.0),
    "a class's": lambda patch: patch.setattr(Rated, "sign", -1.0),
    "a class of settings": lambda patch: patch.setattr(Settings, "gain", 3.0),
    "a context variable": lambda patch: SCALE.set(3.0) and None,
    "the environment": lambda patch: patch.setenv("PIPEKIT_POWER", "2"),
}


@pytest.fixture(scope="module")
def over_processes() -> Iterator[pk.Pipeline]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Rated(), FromEnvironment(), nn.Linear(8, 3))
    with closing(piped(model, transport="distributed")) as pipeline:
        yield pipeline


class FromEnvironment(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(os.environ.get("PIPEKIT_POWER", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_script_sets_in_its_files_takes_effect_in_worker_processes(
    change: Callable[[pytest.MonkeyPatch], None],
    over_processes: pk.Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both() -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Rated(), FromEnvironment(), nn.Linear(8, 3))
        (loss,) = over_processes.train(data(1)).losses
        assert loss == piped(model).train(data(1)).losses[0]
        return loss

    def changed() -> float:
        change(monkeypatch)
        return both()

    with no_word():
        assert both() != copy_context().run(changed)


def test_what_comes_back_from_processes_leaves_the_classes_of_a_script_alone() -> None:
    """They travel with the stages, as the workers have them: with methods whose globals are others."""

    class Scaled(nn.Module):
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * x

    forward = Scaled.forward
    model = nn.Sequential(nn.Linear(8, 8), Scaled(), nn.Linear(8, 3))
    with closing(piped(model, transport="distributed")) as pipeline:
        pipeline.train(data(1))
        Scaled.factor = 2.0
        pipeline.state_dict()
    assert (Scaled.forward, Scaled.factor) == (forward, 2.0)


FILE = """
from torch import nn

class Layer(nn.Module):
    def forward(self, x):
        return {factor} * x
"""


def test_code_that_a_notebook_reloads_runs_in_worker_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``%autoreload`` puts the new code into the functions that are there."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own_layers.py"
    path.write_text(FILE.format(factor=1.0))
    own_layers = import_module("own_layers")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), own_layers.Layer(), nn.Linear(8, 3))
    threads, processes = piped(model), piped(model, transport="distributed")
    with closing(processes):
        assert processes.train(data(1)).losses == threads.train(data(1)).losses
        path.write_text(FILE.format(factor=10.0))  # of another length: Python compiles it anew
        superreload(own_layers, old_objects={})
        assert processes.train(data(1)).losses == threads.train(data(1)).losses
        assert list(processes.state_dict()) == list(threads.state_dict())


class Recorder:
    def __init__(self) -> None:
        self.seen: list[float] = []

    def hook(self, layer: nn.Module, given: Any, output: Tensor) -> None:
        self.seen.append(float(output.detach().sum()))


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_what_hooks_record_is_of_the_training_alone_and_a_word_says_where(transport: str) -> None:
    """Not of the questions to the model before it, in which hooks are called, too."""
    seen, recorder = list[float](), Recorder()

    def append(layer: nn.Module, given: Any, output: Tensor) -> None:
        seen.append(float(output.detach().sum()))

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[1].register_forward_hook(append)
    model[2].register_forward_hook(recorder.hook)
    with closing(piped(model, transport=transport)) as pipeline, pytest.warns() as said:
        pipeline.train(data(2))
    copied, *lost = [str(each.message) for each in said]
    assert "the forward changes 2.Recorder.hook.seen: " in copied
    assert ["keep something in 1.append.seen: over processes" in each for each in lost] == (
        [True] * (transport == "distributed")
    )
    assert len(seen) == (2 * 2 if transport == "threads" else 0)  # of each microbatch
    assert recorder.seen == []  # but those of its copies


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return CE(output, target)


def test_what_cannot_be_sent_to_processes_is_refused_with_what_to_do() -> None:
    torch.manual_seed(0)
    model, (pair,) = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), data(1)
    for loss, batch in (Locked(), pair), (lambda o, b: CE(o, b[1]), (*pair, threading.Lock())):
        with pytest.raises(TypeError, match=r"cannot be pickled \(.*lock.*transport='threads'"):
            piped(model, loss, transport="distributed").train([batch])
        piped(model, loss).train([batch])


class Counts(nn.Module):
    """A loss with a centre that follows outputs, as DINO's, a counter and a list."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.calls, self.seen, self.beta = 0, list[int](), 1.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(output))
        self.centre = 0.9 * self.centre + 0.1 * output.detach().mean(0)
        return CE(output - self.centre, target) * self.beta / self.calls


def test_what_a_loss_counts_in_worker_processes_comes_back() -> None:
    found = []
    for transport in "threads", "distributed":
        torch.manual_seed(0)
        loss, model = Counts(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
        with closing(piped(model, loss, transport=transport)) as pipeline:
            losses = pipeline.train(data(2)).losses + pipeline.train(data(2)).losses
            assert (loss.calls, loss.seen) == (8, [4] * 8)
            loss.beta = 0.5
            losses += pipeline.train(data(1)).losses
        losses += pipeline.train(data(1)).losses  # in other processes
        found.append([*losses, loss.calls, *loss.centre.tolist()])
        pipeline.close()
    assert found[0] == found[1]


def test_what_metrics_count_in_worker_processes_comes_back() -> None:
    seen, counts = list[int](), Counts()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))

    def rows(output: Tensor, target: Tensor) -> float:
        seen.append(len(output))
        return 1.0

    metrics: dict[str, Any] = {"counts": counts, "rows": rows}
    with closing(piped(model, transport="distributed")) as pipeline:
        pipeline.evaluate(data(2), metrics)
    assert (seen, counts.calls) == ([8, 8], 2)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta, self.steps, self.inner = 1.0, 0, nn.CrossEntropyLoss()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.inner(output, target) * self.scale()
        return loss

    def scale(self) -> float:
        return self.beta


def test_a_loss_that_on_batch_changes_is_warned_of_over_processes() -> None:
    loss = Loss()

    def anneal(done: Any) -> None:
        loss.beta += 1

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    pipeline = piped(model, loss, transport="distributed")
    with pytest.warns(UserWarning, match=r"beta of the loss changed within.*threads"):
        pipeline.train(data(3), on_batch=anneal)
    pipeline.close()


def test_what_a_loss_reads_is_known() -> None:
    loss, options = Loss(), {"beta": 1.0}
    scale = 1.0

    def closure(output: Tensor, target: Tensor) -> Any:
        return loss(output, target) * scale * options["beta"]

    state = FunctionState(closure)
    loss.steps += 1  # which the loss does not read
    assert state.changed() == {}
    loss.beta, loss.inner.label_smoothing = 2.0, 0.1
    assert state.changed() == {"loss.beta": 2.0, "loss.inner.label_smoothing": 0.1}
    parts = [loss]
    state = FunctionState(lambda output, target: sum(each(output, target) for each in parts))
    loss.beta = 3.0
    assert state.changed() == {"parts.0.beta": 3.0}
    state = FunctionState(closure)
    options["beta"], scale = 2.0, 3.0
    assert state.changed() == {"options": {"beta": 2.0}, "scale": 3.0}
    assert state.changed() == {}
