"""What the engine asks of a device, on an accelerator: order, time, memory (tests/test_devices.py)."""

import threading
import time
import warnings

import pytest
import torch

import pipekit as pk
from pipekit import devices
from pipekit.clusters.papers import V100
from pipekit.devices import Clock, Copier
from tests.device.kind import SIMULATED
from tests.engine.examples import data, mixed
from tests.test_devices import require_states_of


@pytest.mark.skipif(SIMULATED, reason="whose calls return when their work is done")
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
