"""This machine as a cluster, measured in about a second."""

import os
import platform
import queue
import statistics
import threading
import time
from collections.abc import Callable

from pipekit.clusters.cluster import Calibrated, Cluster, Device, Level, require_workers
from pipekit.cores import available_cores

_GEMM_SIDE = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 2**26, "cuda": 2**28}  # more than caches hold
_DTYPES = {"cpu": ("float32",), "cuda": ("float32", "float16", "bfloat16")}


def local(workers: int | None = None) -> Cluster:
    """Measure this machine: its GPUs if it has any, else its CPU shared out among workers.

    The peak is the best of a few large matrix products in each dtype, under PyTorch's present
    settings; memory bandwidth counts both the reading and the writing of a copy.  The link is a
    copy from the first GPU to the second, or through the common memory, and its latency a hand-over
    between two threads.  (Threads on one CPU pass a tensor by reference; to reckon with that,
    ``local().calibrated("memory", math.inf, "passed by reference")``.)

    Args:
        workers: how many; by default one a GPU, or one a core.  More workers than GPUs share them,
            as the engine places them: in turn, with an equal part of memory and peak each.

    Raises:
        ValueError: there would be no worker.
    """
    import torch

    gpus = torch.cuda.device_count()
    workers = workers if workers is not None else gpus or available_cores()
    require_workers(workers)
    return _gpu_cluster(workers, gpus) if gpus else _cpu_cluster(workers)


def _cpu_cluster(workers: int) -> Cluster:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(
        max(1, available_cores() // workers)
    )  # the share that the engine gives to one
    try:
        peaks, copied = _peaks("cpu"), _copied_per_second("cpu", "cpu")
    finally:
        torch.set_num_threads(threads)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / workers
    device = Device(f"{platform.machine()} CPU, 1/{workers} of it", memory, peaks, 2 * copied)
    link = Level(
        "memory",
        workers,
        copied,
        Calibrated(copied, "a copy measured here"),
        latency_s=_thread_handover_s(),
        shared=True,
    )
    return Cluster("this machine", device, (link,))


def _gpu_cluster(workers: int, gpus: int) -> Cluster:
    import torch

    sharing = -(-workers // gpus)
    properties = torch.cuda.get_device_properties(0)
    peaks = {dtype: flops / sharing for dtype, flops in _peaks("cuda:0").items()}
    copied_inside = _copied_per_second("cuda:0", "cuda:0")
    device = Device(
        properties.name if sharing == 1 else f"{properties.name}, 1/{sharing} of it",
        properties.total_memory / sharing,
        peaks,
        2 * copied_inside / sharing,
    )
    alone = gpus == 1
    copied = copied_inside if alone else _copied_per_second("cuda:0", "cuda:1")
    link = Level(
        "GPU memory" if alone else "GPU link",
        workers,
        copied,
        Calibrated(copied, "a copy measured here"),
        latency_s=_thread_handover_s(),
        shared=alone,
    )
    return Cluster("this machine", device, (link,))


def _peaks(device: str) -> dict[str, float]:
    """Return the best FLOP/s of a square matrix product, by dtype."""
    import torch

    kind = torch.device(device).type
    side = _GEMM_SIDE[kind]
    peaks = {}
    for dtype in _DTYPES[kind]:
        a = torch.ones(side, side, device=device, dtype=getattr(torch, dtype))
        seconds = min(_timings(lambda a=a: a @ a, device))  # type: ignore[misc]
        peaks[dtype] = 2 * side**3 / seconds
    return peaks


def _copied_per_second(source: str, target: str) -> float:
    import torch

    size = _COPY_BYTES[torch.device(source).type]
    a = torch.zeros(size, dtype=torch.uint8, device=source)
    b = torch.empty_like(a, device=target)
    return size / min(_timings(lambda: b.copy_(a), target))


def _timings(work: Callable[[], object], device: str, repeats: int = 8) -> list[float]:
    """Return the seconds of each repeat, after two to warm up."""
    import torch

    seconds = []
    for _ in range(2 + repeats):
        start = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def _thread_handover_s(rounds: int = 200) -> float:
    """Return the median seconds for an object to pass from one thread to another."""
    there: queue.SimpleQueue[float] = queue.SimpleQueue()
    back: queue.SimpleQueue[float] = queue.SimpleQueue()

    def answer() -> None:
        for _ in range(rounds):
            back.put(there.get())

    thread = threading.Thread(target=answer, name="pipekit-handover")
    thread.start()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        there.put(start)
        back.get()
        seconds.append((time.perf_counter() - start) / 2)
    thread.join()
    return statistics.median(seconds)
