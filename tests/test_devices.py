"""Marks in time."""

import time

import pytest
import torch

from pipekit.devices import Clock


def test_a_mark_on_the_cpu_is_the_monotonic_time() -> None:
    clock = Clock(torch.device("cpu"))
    before = time.perf_counter()
    mark = clock.now()
    after = time.perf_counter()
    assert before <= clock.seconds(mark) <= after


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_mark_on_a_gpu_is_when_its_work_was_done() -> None:
    device = torch.device("cuda", 0)
    clock = Clock(device)
    x = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    start = clock.now()
    for _ in range(50):
        x = x @ x * 1e-3
    end = clock.now()
    called = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    assert begin - 1e-3 <= clock.seconds(start) < clock.seconds(end) <= done + 1e-3
    assert clock.seconds(end) > called, "the calls return before the work is done"
