"""``torch.distributed.pipelining`` over gloo: one process a stage, kept for the whole benchmark."""

import os
import socket
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from workload import INTERLEAVED, Case, timed_sgd

from pipekit.engine.transports.processes.forkserver import forkserver
from pipekit.operator_threads import share_cores

SCHEDULES: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    INTERLEAVED: ScheduleInterleaved1F1B,
}


class Peers:
    """The processes of one pipeline; they wait for cases, and end with the ``with`` block.

    Args:
        stages: how many.
    """

    def __init__(self, stages: int) -> None:
        context = forkserver()
        self._folder = tempfile.TemporaryDirectory(prefix="pipekit-benchmark-")
        store = str(Path(self._folder.name, "store"))
        pipes = [context.Pipe() for _ in range(stages)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_main, args=(rank, stages, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self._processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that a process that dies is an EOFError here
        for pipe in self._pipes:
            pipe.recv()  # they import and connect before the first contestant runs

    def train(self, case: Case, schedule: str, stamps: Path) -> list[Tensor]:
        """Train a case by one of the SCHEDULES; return the final weights, in the model's order.

        Raises:
            EOFError: a process died; its traceback is on stderr.
        """
        for pipe in self._pipes:
            pipe.send((case, schedule, stamps))
        by_stage = {number: arrays for pipe in self._pipes for number, arrays in pipe.recv()}
        return [
            torch.from_numpy(array) for _, arrays in sorted(by_stage.items()) for array in arrays
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def _main(rank: int, stages: int, store: str, pipe: Connection) -> None:
    share_cores(stages)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    file_store = dist.FileStore(store, stages)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file_store, rank=rank, world_size=stages)
    pipe.send("ready")
    while True:
        case, schedule, stamps = pipe.recv()
        weights = _train(rank, case, schedule, stamps)
        pipe.send([(stage, [p.detach().numpy() for p in each]) for stage, each in weights.items()])


def _train(rank: int, case: Case, name: str, stamps: Path) -> dict[int, list[nn.Parameter]]:
    balance, model = case.balance(name), case.model()
    stages = {
        number: PipelineStage(
            model[number * layers : (number + 1) * layers],
            number,
            len(balance),
            torch.device("cpu"),
        )
        for number, layers in enumerate(balance)
        if number % case.stages == rank
    }
    parameters = {number: list(stage.submod.parameters()) for number, stage in stages.items()}
    optimizer = timed_sgd([p for each in parameters.values() for p in each], case, stamps)
    own = list(stages.values())
    # Gradients are divided by the number of microbatches: the loss is the mean of the batch.
    schedule = SCHEDULES[name](
        own if name == INTERLEAVED else own[0],
        case.microbatches,
        loss_fn=nn.MSELoss(),
        scale_grads=True,
    )
    batches = case.batches()
    dist.barrier()
    for x, y in batches:
        if rank == 0:
            schedule.step(x)
        elif rank == case.stages - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    return parameters
