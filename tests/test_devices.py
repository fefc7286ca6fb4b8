"""What the engine asks of a device: that it is there, order, time, random numbers, memory."""

import os
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipekit import devices
from pipekit.devices import CPU, Clock, streams


@pytest.mark.parametrize("named", ["cpu", "cpu:0", CPU])
def test_a_cpu_has_one_name(named: Any) -> None:
    assert devices.resolve(named) == CPU == torch.empty(0).device


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_device_that_is_not_there(kind: str) -> None:
    if not devices.device_count(kind):
        with pytest.raises(ValueError, match=f"{kind}:1 does not exist: PyTorch finds none of"):
            devices.resolve(f"{kind}:1")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("meta", "meta does not exist"),
        ("vulkan", "vulkan does not exist"),
        ("gpu", "'gpu' is not a device: say 'cpu', or 'cuda:0'"),
    ],
)
def test_what_nothing_can_be_computed_on(named: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        devices.resolve(named)


def test_a_device_for_each_worker() -> None:
    assert devices.resolve_for_workers(["cpu", CPU], 2) == [CPU, CPU]
    with pytest.raises(ValueError, match="names 1 devices for 2 workers"):
        devices.resolve_for_workers(["cpu"], 2)


def test_by_default_workers_have_the_accelerators_in_turn_or_the_cpu() -> None:
    default = devices.resolve_for_workers(None, 3)
    assert default == ((devices.accelerators() or [CPU]) * 3)[:3]


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
    assert devices.process_group(CPU) == {"backend": "gloo"}


def test_random_states_are_those_that_operators_draw_from() -> None:
    require_states_of(CPU)


def require_states_of(device: torch.device) -> None:
    """Setting the random states decides what operators draw."""
    with devices.random_states_put_back(device):
        torch.manual_seed(4)
        before = torch.rand(3, device=device)
    states = devices.random_states(device)
    for state, generator in zip(states, devices.new_generators(device), strict=True):
        state.set_state(generator.manual_seed(5).get_state())
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


class _Event:
    """An accelerator's event at a time, as exact as PyTorch tells it: in float32 milliseconds."""

    def __init__(self, seconds: float) -> None:
        self.at_s = seconds

    def synchronize(self) -> None:
        """It has passed."""

    def elapsed_time(self, other: "_Event") -> float:
        return float(torch.tensor((other.at_s - self.at_s) * 1e3, dtype=torch.float32))


def test_after_hours_a_mark_is_as_exact_as_at_first() -> None:
    clock = Clock(torch.device("cuda"))
    clock._known, clock._known_s = _Event(0.0), 0.0  # type: ignore[assignment]
    for batch_s in np.arange(1, 3 * 3600, 4.57):
        start, end = (clock.seconds(_Event(at_s)) for at_s in (batch_s, batch_s + 0.0123))
        assert end - start == pytest.approx(0.0123, abs=1e-8)
        assert start == pytest.approx(batch_s, rel=6e-8)


@pytest.mark.parametrize(("named", "visible"), [(None, ""), ("cuda", "0,1")])
def test_gpus_are_hidden_unless_their_kind_is_named(
    named: str | None, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("PIPEKIT_DEVICE", raising=False)
    if named:
        monkeypatch.setenv("PIPEKIT_DEVICE", named)
    devices.stay_on_cpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_tensor_is_kept_for_a_stream_in_its_parts(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch records no stream for the whole of it."""
    monkeypatch.setattr(streams, "is_accelerator", lambda _: True)
    monkeypatch.setattr(streams, "current_stream", str)
    kept = list[Tensor]()
    monkeypatch.setattr(Tensor, "record_stream", lambda part, _: kept.append(part))
    tensor = getattr(torch.eye(4), f"to_sparse_{layout}")(*[(2, 2)] * layout.startswith("b"))
    assert streams.keep_for_current_stream(tensor) is tensor
    assert len(kept) == (2 if layout == "coo" else 3)
    assert kept[-1].sum() == 4  # values
