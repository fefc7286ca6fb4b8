"""This machine as a cluster, measured in about a second."""

import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipekit.clusters.cluster import Calibrated, Cluster, Device, Level
from pipekit.host.provenance import available_cores

if TYPE_CHECKING:
    import torch


_REPEATS = 8


def local(workers: int | None = None) -> Cluster:
    """Measure this machine: its GPUs if it has any, else its CPU shared out among workers.

    Memory bandwidth counts both the reading and the writing of a copy.  The link is a copy from the
    first GPU to the second, or through the common memory, without latency: what the engine takes
    for a message is :func:`pipekit.emulation.measured_host`'s.  (Threads on one CPU pass a tensor
    by reference: ``local().calibrated("memory", math.inf, "passed by reference")``.)

    Args:
        workers: how many; by default one a GPU, or one a core.  More workers than GPUs share them
            in turn, with an equal part of the memory each.

    Raises:
        ValueError: there would be no worker.
    """
    from pipekit.devices import accelerators

    gpus = accelerators()
    workers = workers if workers is not None else len(gpus) or available_cores()
    if workers < 1:
        raise ValueError(f"{workers} workers cannot run anything: ask for at least 1")
    device, copied = _gpu(gpus, -(-workers // len(gpus))) if gpus else _cpu(workers)
    alone = len(gpus) == 1
    link = Level(
        "memory" if not gpus else "GPU memory" if alone else "GPU link",
        workers,
        copied,
        Calibrated(copied, "a copy measured here"),
        shared=alone or not gpus,
    )
    return Cluster("this machine", device, (link,))


def _cpu(sharing: int) -> tuple[Device, float]:
    """Return one worker's part of the CPU, and the bytes/s of a copy."""
    import torch

    from pipekit.devices import CPU

    threads = torch.get_num_threads()
    # The share that the engine gives to one.
    torch.set_num_threads(max(1, available_cores() // sharing))
    try:
        copied = _copied_per_second(CPU, CPU)
    finally:
        torch.set_num_threads(threads)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / sharing
    name = f"{platform.machine()} CPU, 1/{sharing} of it"
    return Device(name, memory, {}, 2 * copied), copied


def _gpu(gpus: "Sequence[torch.device]", sharing: int) -> tuple[Device, float]:
    """Return one worker's part of a GPU, and the bytes/s that a copy to the next one attains."""
    from pipekit.devices import memory_bytes, name_of

    first = gpus[0]
    inside = _copied_per_second(first, first)
    name = name_of(first) + (f", 1/{sharing} of it" if sharing > 1 else "")
    device = Device(name, memory_bytes(first) / sharing, {}, 2 * inside / sharing)
    return device, inside if len(gpus) == 1 else _copied_per_second(first, gpus[1])


def _copied_per_second(source: "torch.device", target: "torch.device") -> float:
    import torch

    from pipekit.devices import synchronize

    size = 2**26 if target.type == "cpu" else 2**28  # more than caches hold
    a = torch.zeros(size, dtype=torch.uint8, device=source)
    b = torch.empty_like(a, device=target)
    seconds = []
    for _ in range(2 + _REPEATS):
        start = time.perf_counter()
        b.copy_(a)
        synchronize(target)
        seconds.append(time.perf_counter() - start)
    return size / min(seconds[2:])
