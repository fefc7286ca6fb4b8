"""What the engine asks of a device, on an accelerator: order, time, memory (tests/test_devices.py)."""

import copy
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pipekit as pk
from pipekit import devices, schedules
from pipekit.clusters.papers import V100
from pipekit.devices import Clock, Copier
from pipekit.schedules import Schedule
from tests.device import sanitizer
from tests.device.kind import SIMULATED, on, to_compare
from tests.device.test_pipeline import build
from tests.engine.examples import data, different, mixed, mlp
from tests.people.test_torchgpipe import Calls
from tests.test_devices import require_states_of


@pytest.mark.skipif(SIMULATED, reason="whose calls return when their work is done")
@pytest.mark.skipif(sanitizer.ON, reason="of times")
def test_a_mark_on_an_accelerator_is_when_its_work_was_done() -> None:
    here = devices.accelerators()
    device = here[0]
    clock = Clock(device)
    x = torch.randn(4096, 4096, device=device)
    devices.synchronize(device)
    begin = time.perf_counter()
    start = clock.now()
    for _ in range(50):
        x = x @ x * 1e-3
    end = clock.now()
    called = time.perf_counter()
    devices.synchronize(device)
    done = time.perf_counter()
    assert begin - 1e-3 <= clock.seconds(start) < clock.seconds(end) <= done + 1e-3
    assert clock.seconds(end) > called, "the calls return before the work is done"


def test_an_index_is_filled_in_and_must_exist() -> None:
    here = devices.accelerators()
    kind = here[0].type
    assert devices.resolve(kind) == torch.empty(0, device=kind).device
    with pytest.raises(ValueError, match=f"{kind}:99 does not exist: {len(here)} of that kind"):
        devices.resolve(f"{kind}:99")
    with pytest.raises(ValueError, match="several kinds"):
        devices.resolve_for_workers([kind, "cpu"], 2)


@pytest.mark.parametrize("beside", [True, False])
def test_a_copy_to_another_worker_waits_for_what_it_copies(beside: bool) -> None:
    here = devices.accelerators()
    source, target = here[0], here[-1]
    streams = devices.new_stream(source), devices.new_stream(target)
    length = torch.tensor(3)
    with devices.on_stream(streams[0]):
        x = torch.randn(256, 256, device=source)
        y = x
        for _ in range(20):
            y = y @ x * 0.06
        copied, ready = Copier(source, beside).copy((y, length), target)
    with devices.on_stream(streams[1]):
        devices.wait_event(target, ready)
        there = devices.keep_for_current_stream(copied[0]) * 2
        devices.synchronize(target)
    devices.synchronize(source)
    assert copied[1] is length, "what lies on the host stays there"
    assert there.device == target
    assert torch.equal(there.cpu(), y.cpu() * 2)


def test_a_stream_may_be_current_in_one_thread_after_another() -> None:
    here = devices.accelerators()
    stream = devices.new_stream(here[0])

    def compute() -> None:
        with devices.on_stream(stream):
            assert devices.current_stream(here[0]) == stream

    for _ in range(2):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert devices.current_stream(here[0]) != stream


def test_an_accelerator_has_memory_and_a_name() -> None:
    device = devices.accelerators()[0]
    assert devices.memory_bytes(device) > 2**22
    assert devices.name_of(device)


def test_random_states_are_those_that_operators_draw_from() -> None:
    require_states_of(devices.accelerators()[0])


def test_layers_are_profiled_there() -> None:
    there = devices.accelerators()[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # times of such short layers
        found = pk.profile(mixed(), data(1)[0][0], str(there), repeats=2)
    here = pk.Profile.analytic(mixed(), data(1)[0][0], V100)
    assert [layer.parameter_bytes for layer in found.layers] == [
        layer.parameter_bytes for layer in here.layers
    ]


class Dropped(nn.Linear):
    """Draws within a checkpoint of its own, or without one."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__(6, 6)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if not self.checkpointed:
            return self.dropped(x)
        y: Tensor = checkpoint(self.dropped, x, use_reentrant=False)
        return y

    def dropped(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x)).tanh() + 0.1 * torch.randn_like(x)


@pytest.mark.skipif(sanitizer.ON, reason="its hooks fail while a checkpoint ends early")
@pytest.mark.parametrize("method", [schedules.gpipe, schedules.zb_h1])
def test_a_layers_own_checkpoint_draws_again_as_in_its_forward(
    method: Callable[[int, int], Schedule],
) -> None:
    trained = []
    for checkpointed in True, False:
        torch.manual_seed(0)
        model = nn.Sequential(Dropped(checkpointed), Dropped(checkpointed), nn.Linear(6, 3))
        pipeline = build(model, method(2, 3), on(1, 2), balance=[1, 2])
        pipeline.train(data(2))
        trained.append(pipeline.state_dict())
    assert different(*trained) == []


@contextmanager
def default_device(device: str) -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(before)


def test_new_tensors_may_begin_on_the_accelerator(tmp_path: Path) -> None:
    """Those of the user's layers, by torch.set_default_device, and not those of the engine."""
    found = []
    for folder, places in enumerate((to_compare(2), on(min(2, len(devices.accelerators())), 2))):
        first, second = mlp(6, 6, 3)
        shift = Calls(lambda x: x + torch.ones(6))
        model = nn.Sequential(shift, first, Calls(shift.function), second).to(places[0])
        batches = [(x.to(places[0]), y.to(places[0])) for x, y in data(3)]
        pipeline = build(model, schedules.two_bw(2, 3), places, balance=[2, 2])
        module = pk.PipelinedModule(copy.deepcopy(model), [2, 2], chunks=3, devices=places)
        with default_device(torch.device(places[0]).type):
            pipeline.train(batches, checkpoints=pk.Checkpoints(tmp_path / str(folder), every=1))
            pipeline.evaluate(batches)
            output = module(batches[0][0])
            nn.functional.mse_loss(output, batches[0][1].to(output.device)).backward()
        gradients = {
            name: each.grad.cpu()
            for name, each in module.named_parameters()
            if each.grad is not None
        }
        found.append((pipeline.state_dict(), gradients))
    assert different(found[0][0], found[1][0]) == []
    assert different(found[0][1], found[1][1]) == []
