"""Under ``torchrun``: this process is one worker, and the others run the same script beside it."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pipekit.devices import process_group_backend, set_device
from pipekit.engine.batches import Batch, Feed, Needs
from pipekit.engine.config import RunConfig
from pipekit.engine.transports.distributed import DistributedLinks
from pipekit.engine.transports.loopback import stay_on_loopback
from pipekit.engine.work import Report, WorkerAssignment, run
from pipekit.operator_threads import share_cores

T = TypeVar("T")
LossCallback = Callable[[int, float], None]


def launched() -> bool:
    """Return whether this process was started by torchrun, or in its way."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """Return which of the processes this is."""
    return int(os.environ["RANK"])


class TorchrunRunner:
    """Runs the worker that this process is; the others' processes do so with theirs.

    Args:
        devices: of all workers.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices

    def run(
        self,
        workers: Sequence[WorkerAssignment],
        config: RunConfig,
        batches: Iterable[Batch],
        on_loss: LossCallback | None,
    ) -> list[Report]:
        """Return everybody's reports, but only this worker's stages in them.

        Every process reads all batches itself.

        Args:
            workers: what each is to do.
            config: what is common to all.
            batches: the run's data.
            on_loss: called with (microbatch, weighted loss) where the last stage is, or None.

        Raises:
            Exception: what this worker raised.
            ValueError: there are more or fewer processes than workers, or idle ones in training.
        """
        own = workers[_join_group(self._devices)]
        idle = sorted(set(range(config.workers)) - set(config.busy))
        if config.training and idle:
            raise ValueError(
                f"the schedule has nothing to do for worker {idle[0]}, whose weights would be left "
                f"behind: under torchrun, train on enough batches to give each worker one"
            )
        cores = torch.get_num_threads()
        share_cores(int(os.environ.get("LOCAL_WORLD_SIZE", config.workers)))
        feed = Feed(batches, Needs.of(own.steps))
        links = DistributedLinks(own, config, feed, read_ahead=True)

        def report_loss(microbatch: int, loss: Tensor) -> None:
            assert on_loss is not None
            on_loss(microbatch, loss.item())

        dist.barrier()
        origin = time.perf_counter()  # machines' clocks start anywhere; all leave a barrier now
        try:
            report = run(own, config, links, feed, on_loss and report_loss)
        finally:
            torch.set_num_threads(cores)
        shared = replace(report, record=report.record.later(-origin), stages=[])
        reports = [replace(each, record=each.record.later(origin)) for each in everybodys(shared)]
        reports[own.index] = replace(reports[own.index], stages=report.stages)
        return reports

    def gather(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of all workers' processes, of which ``state`` has this one's."""
        # Of a stage's workers the first counts: each has running statistics of its own.
        parts = reversed(everybodys(state))
        return {name: tensor for part in parts for name, tensor in part.items()}

    def agree(self, function: Callable[[], T]) -> T:
        """Return in every process what ``function`` returns in the first one."""
        values: list[T | None] = [function() if _join_group(self._devices) == 0 else None]
        dist.broadcast_object_list(values)
        return cast(T, values[0])

    def close(self) -> None:
        """Do nothing: the process group is the program's."""


def everybodys(value: Any) -> list[Any]:
    """Return what every worker gave, in the order of the workers."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _join_group(devices: Sequence[torch.device]) -> int:
    """Join the process group that torchrun described, and return this worker's number.

    Args:
        devices: of all workers; this one's becomes the process's.

    Raises:
        ValueError: torchrun started another number of processes than the schedule has workers.
    """
    if not dist.is_initialized():
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            stay_on_loopback()
        store, number, size = next(rendezvous("env://"))
        device = devices[min(number, len(devices) - 1)]  # too many processes are refused below
        set_device(device)
        # A restarted process must not find where those of the last attempt were to be reached.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            process_group_backend(device),
            store=PrefixStore(f"attempt {attempt}", store),
            rank=number,
            world_size=size,
        )
    if dist.get_world_size() != len(devices):
        raise ValueError(
            f"torchrun started {dist.get_world_size()} processes and the schedule has "
            f"{len(devices)} workers: start it with --nproc-per-node so that there are "
            f"{len(devices)}"
        )
    return dist.get_rank()
