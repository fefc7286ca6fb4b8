"""What the engine asks of a device: that it is there, order, time, random numbers, memory.

What needs an accelerator runs on whatever kind there is.
"""

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from pipekit import devices
from pipekit.devices import CPU, Clock, Copier

HERE = devices.accelerators()
needs_accelerator = pytest.mark.skipif(not HERE, reason="needs an accelerator")


@pytest.mark.parametrize("named", ["cpu", "cpu:0", CPU])
def test_a_cpu_has_one_name(named: Any) -> None:
    assert devices.resolve(named) == CPU == torch.empty(0).device


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_device_that_is_not_there(kind: str) -> None:
    if not devices.device_count(kind):
        with pytest.raises(ValueError, match=f"{kind}:1 does not exist: PyTorch finds none of"):
            devices.resolve(f"{kind}:1")


@pytest.mark.parametrize("kind", ["meta", "vulkan"])
def test_what_nothing_can_be_computed_on(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} does not exist"):
        devices.resolve(kind)


def test_what_is_no_device() -> None:
    with pytest.raises(ValueError, match="'gpu' is no device: say 'cpu', or 'cuda:0'"):
        devices.resolve("gpu")


def test_a_device_for_each_worker() -> None:
    assert devices.resolve_for_workers(["cpu", CPU], 2) == [CPU, CPU]
    with pytest.raises(ValueError, match="names 1 devices for 2 workers"):
        devices.resolve_for_workers(["cpu"], 2)


def test_by_default_workers_have_the_accelerators_in_turn_or_the_cpu() -> None:
    default = devices.resolve_for_workers(None, 3)
    assert default == ((HERE or [CPU]) * 3)[:3]


def test_on_a_cpu_there_is_nothing_to_wait_for() -> None:
    assert devices.new_stream(CPU) is None
    assert devices.record_event(CPU) is None
    devices.wait_event(CPU, None)
    devices.synchronize(CPU)
    devices.set_device(CPU)
    with devices.on_stream(None):
        tensor = torch.ones(2)
    assert devices.keep_for_current_stream(tensor) is tensor
    tree = {"x": tensor}
    assert devices.to_device(tree, CPU) is tree
    assert devices.peak_bytes(CPU) is None
    assert devices.process_group(CPU) == {"backend": "gloo"}


@pytest.mark.parametrize("device", [CPU, *HERE[:1]], ids=str)
def test_random_states_are_those_that_operators_draw_from(device: torch.device) -> None:
    with devices.random_states_put_back(device):
        before = torch.rand(3, device=device)
    states = devices.random_states(device)
    for state in states:
        state.manual_seed(5)
    again = [state.get_state() for state in states]
    drawn = torch.rand(3, device=device)
    generator = torch.Generator(device).manual_seed(5)
    assert torch.equal(drawn, torch.rand(3, device=device, generator=generator))
    for state, value in zip(states, again, strict=True):
        state.set_state(value)
    assert torch.equal(drawn, torch.rand(3, device=device))
    assert not torch.equal(drawn, before)


def test_a_mark_on_the_cpu_is_the_monotonic_time() -> None:
    clock = Clock(CPU)
    before = time.perf_counter()
    mark = clock.now()
    after = time.perf_counter()
    assert before <= clock.seconds(mark) <= after


@needs_accelerator
def test_a_mark_on_an_accelerator_is_when_its_work_was_done() -> None:
    device = HERE[0]
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


class _Event:
    """An accelerator's event at a time, as exact as PyTorch tells it: in float32 milliseconds."""

    def __init__(self, seconds: float) -> None:
        self.at_s = seconds

    def synchronize(self) -> None:
        """It has passed."""

    def elapsed_time(self, other: "_Event") -> float:
        return float(torch.tensor((other.at_s - self.at_s) * 1e3, dtype=torch.float32))


def test_after_hours_a_mark_is_as_exact_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Event", _Event)
    clock = Clock(CPU)
    clock._known, clock._known_s = _Event(0.0), 0.0  # type: ignore[assignment]
    for batch_s in np.arange(1, 3 * 3600, 0.457):
        start, end = (clock.seconds(_Event(at_s)) for at_s in (batch_s, batch_s + 0.0123))
        assert end - start == pytest.approx(0.0123, abs=1e-8)
        assert start == pytest.approx(batch_s, rel=6e-8)


@needs_accelerator
def test_an_index_is_filled_in_and_must_exist() -> None:
    kind = HERE[0].type
    assert devices.resolve(kind) == torch.empty(0, device=kind).device
    with pytest.raises(ValueError, match=f"{kind}:99 does not exist: {len(HERE)} of that kind"):
        devices.resolve(f"{kind}:99")
    with pytest.raises(ValueError, match="several kinds"):
        devices.resolve_for_workers([kind, "cpu"], 2)


@needs_accelerator
@pytest.mark.parametrize("beside", [True, False])
def test_a_copy_to_another_worker_waits_for_what_it_copies(beside: bool) -> None:
    source, target = HERE[0], HERE[-1]
    streams = devices.new_stream(source), devices.new_stream(target)
    length = torch.tensor(3)
    with devices.on_stream(streams[0]):
        x = torch.randn(2048, 2048, device=source)
        y = x
        for _ in range(20):
            y = y @ x * 0.02
        copied, ready = Copier(source, beside).copy((y, length), target)
    with devices.on_stream(streams[1]):
        devices.wait_event(target, ready)
        there = devices.keep_for_current_stream(copied[0]) * 2
        devices.synchronize(target)
    devices.synchronize(source)
    assert copied[1] is length, "what lies on the host stays there"
    assert there.device == target
    assert torch.equal(there.cpu(), y.cpu() * 2)


@needs_accelerator
def test_a_stream_may_be_current_in_one_thread_after_another() -> None:
    stream = devices.new_stream(HERE[0])

    def compute() -> None:
        with devices.on_stream(stream):
            assert devices.current_stream(HERE[0]) == stream

    for _ in range(2):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert devices.current_stream(HERE[0]) != stream


@needs_accelerator
def test_the_allocators_peak_on_an_accelerator() -> None:
    device = HERE[0]
    devices.reset_peak_bytes(device)
    before = devices.peak_bytes(device)
    x = torch.empty(2**22, device=device)
    assert before is not None
    assert devices.peak_bytes(device) == before + x.nbytes
    assert devices.memory_bytes(device) > x.nbytes
    assert devices.name_of(device)
